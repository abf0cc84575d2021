"""Two questions at once, with an answer as plain as that of one after the other."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")


async def both(first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Run two coroutines at the same time and return what both return.

    Raises:
        Exception: what the first of them to fail raised, by itself, not in a group; the other one was cancelled and has ended.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = group.create_task(first), group.create_task(second)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return tasks[0].result(), tasks[1].result()
