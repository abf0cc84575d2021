"""A token bucket."""

import asyncio

from agents.kube.ratelimit import RateLimiter
from tests.support.clock import FakeClock


async def test_burst_then_rate(clock: FakeClock) -> None:
    """A burst passes at once, the rest at the rate, in order, also when they ask at the same time."""
    limiter = RateLimiter(qps=2, burst=3, clock=clock)
    times: list[float] = []

    async def ask() -> None:
        await limiter.wait()
        times.append(clock.monotonic() - 1000)

    async with asyncio.TaskGroup() as group:
        for _ in range(6):
            group.create_task(ask())
    assert times == [0, 0, 0, 0.5, 1.0, 1.5]


async def test_bucket_fills_again_up_to_the_burst(clock: FakeClock) -> None:
    """After a pause at most the burst passes at once."""
    limiter = RateLimiter(qps=2, burst=3, clock=clock)
    await asyncio.sleep(100)
    started = clock.monotonic()
    for _ in range(4):
        await limiter.wait()
    assert clock.monotonic() - started == 0.5
