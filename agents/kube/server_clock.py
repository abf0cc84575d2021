"""The API server's time, as the `Date` headers of its answers tell it.

What is judged by time elsewhere has to carry that time: a Lease is stale, or a lock free, by the clock of whoever reads it. A
machine's wall clock can be wrong, and can jump. So the server's time is kept relative to the monotonic clock: a jump between
two answers changes nothing, not even the next Lease.

A `Date` has a resolution of one second, and was written at some moment between request and answer. Each answer thus gives a span
in which the server's time lies; spans of several answers are intersected, and one that contradicts what was known replaces it.
"""

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from agents.core.clock import Clock
from agents.core.logging import get_logger

log = get_logger(__name__)

TOLERANCE = timedelta(seconds=5)
"""Up to this difference the machine's own clock is taken."""

_RESOLUTION_SECONDS = 1.0


class ServerClock:
    """A `Clock` whose wall time is the API server's where the machine's differs from it by more than 5 s.

    Args:
        clock: the machine's.
        name: which cluster, for logs.
    """

    def __init__(self, *, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name
        # Server's time in seconds since the epoch, minus monotonic seconds: between these two.
        self._low = 0.0
        self._high: float | None = None
        self.ahead: timedelta | None = None
        """How far the machine's clock is ahead (negative: behind), as it was said; None if they agree."""

    def note(self, date: str | None, *, sent: float) -> None:
        """Learn from the `Date` header of an answer that has just come; `sent` is when it was asked for, monotonic."""
        told = _parse(date)
        if told is None:
            return
        low = told - self._clock.monotonic()
        high = told + _RESOLUTION_SECONDS - sent
        if self._high is not None and max(low, self._low) <= min(high, self._high):
            low, high = max(low, self._low), min(high, self._high)
        self._low, self._high = low, high
        self.now()

    def now(self) -> datetime:
        """Return the machine's wall clock, or the server's time if they differ by more than 5 s."""
        own, monotonic = self._clock.now(), self._clock.monotonic()
        if self._high is None:
            return own
        low, high = (_moment(monotonic + bound) for bound in (self._low, self._high))
        if low - TOLERANCE <= own <= high + TOLERANCE:
            self._agrees()
            return own
        server = low + (high - low) / 2
        self._differs(own - server)
        return server

    def monotonic(self) -> float:
        """Return the machine's monotonic seconds."""
        return self._clock.monotonic()

    def _differs(self, ahead: timedelta) -> None:
        if self.ahead is not None and abs(ahead - self.ahead) <= TOLERANCE:
            return
        self.ahead = ahead
        log.error(
            "Clock differs from the API server's, whose time is taken for Leases and certificates; check time synchronisation",
            cluster=self._name,
            aheadSeconds=round(ahead.total_seconds()),
        )

    def _agrees(self) -> None:
        if self.ahead is not None:
            self.ahead = None
            log.info("Clock agrees with the API server's again", cluster=self._name)


def _parse(date: str | None) -> float | None:
    """Return seconds since the epoch; None for what is no date."""
    try:
        told = parsedate_to_datetime(date or "")
        return told.replace(tzinfo=told.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError, TypeError):
        return None


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
