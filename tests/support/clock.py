"""The clock that unit tests pass in: it follows the virtual event loop."""

import asyncio
from datetime import UTC, datetime, timedelta

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """Reads the running loop's virtual time; without a loop it stands still until `advance`."""

    def __init__(self, start: datetime = EPOCH) -> None:
        self._start = start
        self._offset = 0.0

    def now(self) -> datetime:
        """Return the start plus the virtual time that went by."""
        return self._start + timedelta(seconds=self.monotonic() - 1000.0)

    def monotonic(self) -> float:
        """Return virtual seconds."""
        try:
            return asyncio.get_running_loop().time() + self._offset
        except RuntimeError:
            return 1000.0 + self._offset

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward (or back), as somebody does with `date`; monotonic time knows nothing of it."""
        self._start += timedelta(seconds=seconds)

    def advance(self, seconds: float) -> None:
        """Move this clock ahead of the loop's."""
        self._offset += seconds
