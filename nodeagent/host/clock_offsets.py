"""What a time on the wall clock was on the clock that nobody sets.

The kernel stamps files with wall time only. Somebody who sets the clock turns the order of such a stamp and of another moment
around, so what the wall clock was ahead of the monotonic one is noted now and then, and a stamp is taken back to the
earliest moment at which a clock that was noted may have shown it.
"""

import math
from collections import deque
from dataclasses import dataclass

from agents.core.clock import Clock

_SAME_SECONDS = 1.0
"""Offsets that differ by less are one: two clocks cannot be read at once."""
_AHEAD_SECONDS = 60.0
"""A stamp that is further in the future comes from a clock that was not noted."""
_MOST = 64


@dataclass(slots=True)
class _Noted:
    offset: float
    last: float
    """When it was noted last, in monotonic seconds."""


class ClockOffsets:
    """The offsets of this process's life; not more than 64, the newest ones.

    Args:
        clock: both clocks of this machine.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._noted: deque[_Noted] = deque(maxlen=_MOST)
        self.note()

    def note(self) -> None:
        """Note how the clocks stand now."""
        now = self._clock.monotonic()
        offset = self._clock.now().timestamp() - now
        if self._noted and abs(self._noted[-1].offset - offset) < _SAME_SECONDS:
            self._noted[-1].last = now
        else:
            self._noted.append(_Noted(offset, now))

    def earliest(self, wall: float, *, offset: float, since: float | None) -> float:
        """Return the earliest moment that a stamp may stand for, in monotonic seconds.

        Args:
            wall: the stamp, in seconds since the epoch.
            offset: of the wall clock at another moment that the result is compared with.
            since: no earlier than this the stamp was made, in monotonic seconds; None if that is not known.

        Returns:
            Minus infinity if no clock that is known can have shown it.
        """
        noted = (item.offset for item in self._noted if since is None or item.last >= since)
        largest = max((item for item in noted if item > offset + _SAME_SECONDS), default=offset)
        moment = wall - largest
        return moment if moment <= self._clock.monotonic() + _AHEAD_SECONDS else -math.inf
