"""The steps of a start: one after another, each tried until it works, and visible while it does not.

Only a wrong configuration ends the process. Source: contract core 1.2, W1.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from random import Random
from typing import TypeVar

from agents.core.clock import Clock
from agents.core.errors import AgentError, FatalError
from agents.core.logging import get_logger

T = TypeVar("T")

log = get_logger(__name__)

FIRST_BACKOFF = timedelta(milliseconds=100)
LONGEST_BACKOFF = timedelta(seconds=30)
NEWS_AFTER = timedelta(seconds=2)
"""A step that did not work for so long is said, and then once a minute."""
NEWS_PERIOD = timedelta(minutes=1)


class Startup:
    """What the start is doing.

    Args:
        clock: for waits.
        rng: spreads retries.
    """

    def __init__(self, *, clock: Clock, rng: Random) -> None:
        self._clock = clock
        self._rng = rng
        self._step = "leader election"
        self._problem = ""
        self._since = clock.monotonic()

    async def step(self, name: str, body: Callable[[], Awaitable[T]]) -> T:
        """Do a step until it works.

        Raises:
            FatalError: it never will.
        """
        self._step, self._problem, self._since = name, "", self._clock.monotonic()
        attempt, told = 0, self._since + (NEWS_AFTER - NEWS_PERIOD).total_seconds()
        while True:
            try:
                done = await body()
            except FatalError:
                raise
            except AgentError as error:
                delay = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2 ** min(attempt, 16)) * (1 + 0.1 * self._rng.random())
                attempt, self._problem = attempt + 1, str(error)
                now = self._clock.monotonic()
                if now - told >= NEWS_PERIOD.total_seconds():
                    told = now
                    log.error("Start does not get on, trying again", step=name, error=error, attempt=attempt)
                await asyncio.sleep(delay.total_seconds())
            else:
                log.info("Step of the start done", step=name, seconds=round(self._clock.monotonic() - self._since, 3))
                return done

    def done(self) -> None:
        """Note that the start is over."""
        self._step = self._problem = ""

    async def check(self) -> str | None:
        """Return what the start waits for, None when it is over."""
        if not self._step:
            return None
        seconds = round(self._clock.monotonic() - self._since)
        problem = f": {self._problem}" if self._problem else ""
        return f"start is at '{self._step}' for {seconds} s{problem}"
