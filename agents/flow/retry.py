"""Doing something again until it works, for what nobody else would bring back: waits inside a task.

Not for reconcilers, whose keys the workqueue brings again. Source: contract controllers 2.4.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from agents.core.errors import RetriableError


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt went."""

    done: bool
    error: Exception | None = None


OK = Outcome(done=True)
"""It worked."""

NOT_OK = Outcome(done=False)
"""Not yet, and there is nothing to say about it."""


def minor(error: Exception) -> Outcome:
    """Return: failed, try again."""
    return Outcome(done=False, error=error)


def severe(error: Exception) -> Outcome:
    """Return: failed, and another attempt is of no use."""
    return Outcome(done=True, error=error)


def minor_or_severe(count: int, threshold: int, error: Exception) -> Outcome:
    """Return a severe outcome as soon as the count is above the threshold."""
    return severe(error) if count > threshold else minor(error)


class RetryTimeout(RetriableError):
    """It did not work in time; the last minor error, if there was one, is the cause."""


Attempt = Callable[[], Awaitable[Outcome]]


async def until(interval: timedelta, attempt: Attempt) -> None:
    """Try at once, and then after each interval, until it worked.

    Raises:
        Exception: the error of a severe outcome, or what the attempt raised.
    """
    await _until(interval, attempt, [])


async def until_timeout(interval: timedelta, timeout: timedelta, attempt: Attempt) -> None:
    """Try as `until` does, but not for longer than `timeout`; an attempt that runs then is cancelled.

    Raises:
        RetryTimeout: it did not work in time.
        Exception: as for `until`.
    """
    last: list[Exception] = []
    scope = asyncio.timeout(timeout.total_seconds())
    try:
        async with scope:
            await _until(interval, attempt, last)
    except TimeoutError as error:
        if not scope.expired():
            raise
        if not last:
            raise RetryTimeout("retry failed with deadline exceeded") from error
        raise RetryTimeout(f"retry failed with deadline exceeded, last error: {last[-1]}") from last[-1]


async def _until(interval: timedelta, attempt: Attempt, last: list[Exception]) -> None:
    while True:
        outcome = await attempt()
        if outcome.done:
            if outcome.error is not None:
                raise outcome.error
            return
        if outcome.error is not None:
            last[:] = [outcome.error]
        await asyncio.sleep(interval.total_seconds())
