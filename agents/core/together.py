"""Several things at once, with an answer as plain as that of one after the other."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")


async def both(first: Callable[[], Awaitable[A]], second: Callable[[], Awaitable[B]]) -> tuple[A, B]:
    """Call two functions at the same time and return what both return.

    Raises:
        Exception: what the first of them to fail raised, by itself, not in a group; the other one was cancelled and has ended.
    """
    failed: list[Exception] = []
    tasks: list[asyncio.Task[Any]] = []

    async def watched(call: Callable[[], Awaitable[R]]) -> R | None:
        try:
            return await call()
        except Exception as error:  # noqa: BLE001 - raised below: a group would wrap it, and hide a cancellation of ours
            failed.append(error)
            for task in tasks:
                task.cancel()
            return None

    async with asyncio.TaskGroup() as group:
        tasks += [group.create_task(watched(first)), group.create_task(watched(second))]
    if failed:
        raise failed[0]
    return tasks[0].result(), tasks[1].result()


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group by itself, however deep it lies in groups of groups."""
    error = group.exceptions[0]
    return first_of(error) if isinstance(error, BaseExceptionGroup) else error
