"""Bodies of tasks made of other bodies: with a deadline, with retries, one after another, side by side."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import timedelta

from agents.core.errors import FatalError, RetriableError
from agents.flow.errors import raise_all
from agents.flow.graph import Body
from agents.flow.retry import OK, Outcome, minor, until_timeout


class BodyTimeout(RetriableError):
    """A body did not end in time."""


def with_timeout(body: Body, limit: timedelta) -> Body:
    """Return the body, cancelled when it takes longer than `limit`."""

    async def run() -> None:
        scope = asyncio.timeout(limit.total_seconds())
        try:
            async with scope:
                await body()
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise BodyTimeout("deadline exceeded", limitSeconds=limit.total_seconds()) from error

    return run


def retry_until_timeout(body: Body, *, interval: timedelta, timeout: timedelta) -> Body:
    """Return the body, tried again after each failure until the time is up; then its last error is the cause."""

    async def attempt() -> Outcome:
        try:
            await body()
        except FatalError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the next attempt may work; the last one is raised
            return minor(error)
        return OK

    async def run() -> None:
        await until_timeout(interval, timeout, attempt)

    return run


def recover(body: Body, handler: Callable[[Exception], Awaitable[None]]) -> Body:
    """Return the body, whose failure is given to a handler; not so if it is cancelled."""

    async def run() -> None:
        try:
            await body()
        except FatalError:
            raise
        except Exception as error:  # noqa: BLE001 - the handler decides
            await handler(error)

    return run


def sequential(*bodies: Body) -> Body:
    """Return the bodies one after another; the first that fails ends it."""

    async def run() -> None:
        for body in bodies:
            await body()

    return run


def parallel(*bodies: Body) -> Body:
    """Return the bodies side by side: all run to their end, all errors are raised."""
    return parallel_n(len(bodies), *bodies)


def parallel_n(workers: int, *bodies: Body) -> Body:
    """Return the bodies side by side, so many at a time (0: all); all run to their end, all errors are raised."""

    async def run() -> None:
        waiting = deque(bodies)
        errors: list[Exception] = []

        async def work() -> None:
            while waiting:
                body = waiting.popleft()
                try:
                    await body()
                except Exception as error:  # noqa: BLE001 - collected, and raised when all have ended
                    errors.append(error)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(workers, len(bodies)) if workers > 0 else len(bodies)):
                group.create_task(work())
        raise_all(errors)

    return run


def parallel_exit_on_error(*bodies: Body) -> Body:
    """Return the bodies side by side; the first that fails cancels the others, which are waited for, and is raised."""

    async def run() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for body in bodies:
                    group.create_task(_awaited(body))
        except ExceptionGroup as errors:
            raise_all(errors.exceptions[:1])

    return run


async def _awaited(body: Body) -> None:
    await body()
