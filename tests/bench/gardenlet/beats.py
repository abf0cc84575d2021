"""The beats of a gardenlet as the garden sees them: a watch on the Lease of its Seed."""

import datetime as dt
import http.client
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from tests.lab.api import wait_for
from tests.lab.garden.gardenlet import Gardenlet
from tests.lab.garden.identity import LEASE_NAMESPACE

_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases"
_REOPEN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Beat:
    """One renewal: when we were told of it, on the monotonic clock, and the time that it carries."""

    seen: float
    renewed: dt.datetime


class Beats:
    """Notes every renewal for the length of a block.

    Args:
        gardenlet: whose Seed it is.
    """

    def __init__(self, gardenlet: Gardenlet) -> None:
        self._api, self._name = gardenlet.garden.api, gardenlet.name
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.all: list[Beat] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._over.set()

    def first(self, accepts: Callable[[Beat], bool], *, timeout: float = 60) -> Beat:
        """Wait for a beat."""

        def found() -> Beat | None:
            return next((beat for beat in tuple(self.all) if accepts(beat)), None)

        return wait_for(found, timeout=timeout, what=f"a heartbeat of {self._name}", interval=0.01)

    def after(self, moment: float, *, timeout: float = 60) -> Beat:
        """Wait for the first beat that was seen after a moment of the monotonic clock."""
        return self.first(lambda beat: beat.seen > moment, timeout=timeout)

    def intervals(self, *, since: float) -> list[float]:
        """Return the seconds between the renewals that were seen since a moment, as they stand in the Lease."""
        times = [beat.renewed for beat in tuple(self.all) if beat.seen > since]
        return [(later - earlier).total_seconds() for earlier, later in pairwise(times)]

    def _watch(self) -> None:
        while not self._over.is_set():
            try:
                with self._api.watch(_LEASES, fieldSelector=f"metadata.name={self._name}") as events:
                    for event in events:
                        self._note(event["object"].get("spec", {}).get("renewTime"))
                        if self._over.is_set():
                            return
            except (OSError, http.client.HTTPException, ValueError):
                # Nothing came for a while, or the connection ended; what is there now comes first.
                self._over.wait(_REOPEN_SECONDS)

    def _note(self, told: str | None) -> None:
        if told is None:
            return
        renewed = dt.datetime.fromisoformat(told)
        if not self.all or self.all[-1].renewed != renewed:
            self.all.append(Beat(time.monotonic(), renewed))
