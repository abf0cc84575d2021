"""The test clock itself: checked, since every other unit test believes it."""

import asyncio
import time

import pytest

from tests.support.clock import FakeClock


async def test_virtual_time_jumps_when_idle(clock: FakeClock) -> None:
    """A sleep of ten minutes moves the clock by ten minutes and takes no real time."""
    real, before = time.monotonic(), clock.monotonic()
    await asyncio.sleep(600)
    assert clock.monotonic() - before == pytest.approx(600)
    assert time.monotonic() - real < 5


async def test_virtual_time_stands_still_while_a_thread_works(clock: FakeClock) -> None:
    """A timeout of one virtual second does not fire while a thread needs real time."""
    before = clock.monotonic()
    async with asyncio.timeout(1):
        await asyncio.to_thread(time.sleep, 0.12)
    assert clock.monotonic() == before
