"""Named checks that say whether this process is alive, and whether it is ready.

A check answers None when all is well, else why not. What becomes unhealthy with time does so by a stored deadline and not by a
timer, so a stuck event loop or a stuck controller turns unhealthy by itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import NoReturn

from agents.core.clock import Clock
from agents.runtime.cache import Cache

Check = Callable[[], Awaitable[str | None]]
"""Returns None, or the reason why this is not healthy."""

Note = Callable[[], str]
"""Returns what an operator may want to know, healthy or not; no secret."""

SYNC_DEADLINE_SECONDS = 180.0
"""How long informers may be unsynced before the process counts as dead; gardener pkg/healthz/informer.go."""


async def ping() -> str | None:
    """Pass always: whoever can ask gets an answer."""
    return None


class Checks:
    """Checks by name, for liveness and readiness."""

    def __init__(self) -> None:
        self._liveness: dict[str, Check] = {"ping": ping}
        self._readiness: dict[str, Check] = {}
        self._notes: dict[str, Note] = {}

    @property
    def liveness(self) -> Mapping[str, Check]:
        """Return what `/healthz` asks."""
        return MappingProxyType(self._liveness)

    @property
    def readiness(self) -> Mapping[str, Check]:
        """Return what `/readyz` asks."""
        return MappingProxyType(self._readiness)

    @property
    def notes(self) -> Mapping[str, Note]:
        """Return what `?verbose` tells besides, and what no answer depends on."""
        return MappingProxyType(self._notes)

    def add_note(self, name: str, note: Note) -> None:
        """Have `?verbose` tell this, too."""
        self._notes[name] = note

    def add_liveness(self, name: str, check: Check) -> None:
        """Have `/healthz` ask this, too."""
        self._liveness[name] = check

    def add_readiness(self, name: str, check: Check) -> None:
        """Have `/readyz` ask this, too."""
        self._readiness[name] = check


class LoopLag:
    """How late the event loop comes to its timers: what blocks it delays everything, and a heartbeat first.

    Source: contract core 1.5 (ours; W17).
    """

    PERIOD_SECONDS = 1.0

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self.seconds = 0.0
        """Of the last timer."""

    async def run(self) -> NoReturn:
        """Measure until cancelled."""
        while True:
            due = self._clock.monotonic() + self.PERIOD_SECONDS
            await asyncio.sleep(self.PERIOD_SECONDS)
            self.seconds = max(0.0, self._clock.monotonic() - due)


class InformerSync:
    """Whether the informers of all clusters have what they select.

    Readiness fails as soon as one has not; liveness only when that lasted for three minutes without interruption, measured from
    a stored time (Gardener's timer advances only while somebody asks).
    """

    def __init__(self, *, clock: Clock, deadline_seconds: float = SYNC_DEADLINE_SECONDS) -> None:
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._caches: list[Cache] = []

    def add(self, cache: Cache) -> None:
        """Look at a further cluster's informers."""
        self._caches.append(cache)

    async def liveness(self) -> str | None:
        """Fail when informers have been unsynced for three minutes."""
        since = min((cache.unsynced_since for cache in self._caches if cache.unsynced_since is not None), default=None)
        if since is not None and self._clock.monotonic() - since >= self._deadline_seconds:
            return "informers have not been synced for too long"
        return None

    async def readiness(self) -> str | None:
        """Fail while there is no cluster, or an informer that is not synced."""
        if not self._caches:
            return "no cluster is connected yet"
        return None if all(cache.synced for cache in self._caches) else "informers are not synced"


class PeriodicHealth:
    """Healthy while something beats often enough; unhealthy at once after `fail`, until the next beat."""

    def __init__(self, *, clock: Clock, deadline_seconds: float) -> None:
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._healthy_until = clock.monotonic() + deadline_seconds
        self._failure: str | None = None

    def beat(self) -> None:
        """Be healthy for another period."""
        self._failure = None
        self._healthy_until = self._clock.monotonic() + self._deadline_seconds

    def fail(self, reason: str) -> None:
        """Be unhealthy until the next beat."""
        self._failure = reason

    async def check(self) -> str | None:
        """Return why this is unhealthy, None if it is not."""
        if self._failure is not None:
            return self._failure
        return None if self._clock.monotonic() < self._healthy_until else "no heartbeat in time"
