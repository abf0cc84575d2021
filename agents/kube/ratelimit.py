"""A token bucket: so many requests per second, and a burst. client-go's `qps` and `burst`."""

import asyncio

from agents.core.clock import Clock


class RateLimiter:
    """Lets `burst` requests pass at once and `qps` per second after that, in the order in which they came."""

    def __init__(self, *, qps: float, burst: int, clock: Clock) -> None:
        self._qps = qps
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._updated = clock.monotonic()

    async def wait(self) -> None:
        """Take a token, waiting for it if need be; a cancelled wait keeps the token taken."""
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._updated) * self._qps)
        self._updated = now
        self._tokens -= 1
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / self._qps)
