"""What a stamp of the wall clock may have been on the clock that nobody sets."""

import math

from nodeagent.host.clock_offsets import ClockOffsets
from tests.support.clock import EPOCH, FakeClock

OFFSET = EPOCH.timestamp() - 1000.0
"""Of a FakeClock that nobody has set."""


def test_a_clock_that_nobody_set_is_exact() -> None:
    """OURS: small differences of what was noted change nothing, also after a day."""
    clock = FakeClock()
    offsets = ClockOffsets(clock)
    clock.advance(86400)
    clock.jump(0.5)
    offsets.note()
    assert offsets.earliest(OFFSET + 2000, offset=OFFSET, since=None) == 2000


def test_a_clock_that_was_set_back_leaves_open_when_it_was() -> None:
    """OURS: the stamp may be older than it says, by what the clock was ahead; not if it was made after that."""
    clock = FakeClock()
    offsets = ClockOffsets(clock)
    clock.advance(500)
    clock.jump(-3600)
    offsets.note()
    stamp = clock.now().timestamp()
    assert offsets.earliest(stamp, offset=OFFSET - 3600, since=None) == 1500 - 3600
    assert offsets.earliest(stamp, offset=OFFSET - 3600, since=1400) == 1500
    assert offsets.earliest(stamp, offset=OFFSET, since=1400) == 1500 - 3600


def test_a_stamp_of_the_future_is_of_any_time() -> None:
    """OURS: the clock was set back before this process began; a minute is nothing to conclude from."""
    clock = FakeClock()
    offsets = ClockOffsets(clock)
    stamp = clock.now().timestamp()
    assert offsets.earliest(stamp + 59, offset=OFFSET, since=None) == 1059
    assert offsets.earliest(stamp + 61, offset=OFFSET, since=None) == -math.inf


def test_only_so_many_are_kept() -> None:
    """OURS: a clock that is set again and again costs no more memory; the oldest are forgotten."""
    clock = FakeClock()
    offsets = ClockOffsets(clock)
    for _ in range(70):
        clock.jump(-10)
        offsets.note()
    assert offsets.earliest(OFFSET, offset=OFFSET - 700, since=None) == 70
