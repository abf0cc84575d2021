"""How far a flow is, and telling it to somebody without holding the flow up.

A reporter never makes a task wait: while a report is being written, later ones replace each other, and the last one always
arrives. A report that cannot be written is only logged, as the next one says everything again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from agents.core.errors import AgentError, FatalError
from agents.core.logging import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Stats:
    """The tasks of a flow that are not skipped, by what became of them so far."""

    flow: str
    all: frozenset[str]
    succeeded: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()

    @property
    def pending(self) -> frozenset[str]:
        """Return those that have not begun."""
        return self.all - self.succeeded - self.failed - self.running

    @property
    def percent(self) -> int:
        """Return how many of hundred tasks have succeeded, rounded down; 0 if there are none."""
        return 100 * len(self.succeeded) // len(self.all) if self.all else 0

    @property
    def description(self) -> str:
        """Return what an operator reads."""
        if self.percent == 0:
            return f"Starting {self.flow}"
        if self.percent == 100:
            return f"{self.flow} finished"
        return ", ".join(sorted(self.running))


class Reporter(Protocol):
    """Is told about each change."""

    def report(self, stats: Stats) -> None:
        """Take a change; returns at once."""
        ...

    async def run(self) -> None:
        """Write what is reported, until cancelled."""
        ...

    async def flush(self) -> None:
        """Write what has been reported and not written; `run` has ended."""
        ...


Write = Callable[[Stats], Awaitable[None]]
"""Writes one report; has a deadline of its own."""


class ImmediateReporter:
    """Writes each change at once, or as soon as the one before is written."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._pending: Stats | None = None
        self._changed = asyncio.Event()

    def report(self, stats: Stats) -> None:
        """Take a change."""
        self._pending = stats
        self._changed.set()

    async def run(self) -> None:
        """Write what is reported, until cancelled."""
        while True:
            await self._changed.wait()
            await self.flush()

    async def flush(self) -> None:
        """Write what is pending, if anything is."""
        self._changed.clear()
        if (stats := self._pending) is None:
            return
        try:
            await self._write(stats)
        except FatalError:
            raise
        except Exception as error:
            known = isinstance(error, AgentError)
            log.error("Progress not reported", flow=stats.flow, error=error, exc_info=None if known else error)
        if self._pending is stats:
            self._pending = None


class DelayingReporter(ImmediateReporter):
    """Writes the first change at once, later ones once per period; the last one is never lost."""

    def __init__(self, write: Write, *, period: timedelta) -> None:
        super().__init__(write)
        self._seconds = period.total_seconds()

    async def run(self) -> None:
        """Write the first change, then look every period whether there is news."""
        loop = asyncio.get_running_loop()
        tick = loop.time()
        await self._changed.wait()
        await self.flush()
        while True:
            tick = max(tick + self._seconds, loop.time())
            await asyncio.sleep(tick - loop.time())
            await self.flush()


def new_reporter(write: Write, *, period: timedelta | None) -> Reporter:
    """Return the reporter for a configured period; none means at once."""
    return DelayingReporter(write, period=period) if period else ImmediateReporter(write)
