"""Running something in the background for as long as a test's block lasts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager


class _Done(Exception):
    """Ends the block."""


@asynccontextmanager
async def running(*bodies: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run bodies until the block ends; their failure fails the test."""

    async def start(body: Callable[[], Awaitable[None]]) -> None:
        await body()

    try:
        async with asyncio.TaskGroup() as group:
            for body in bodies:
                group.create_task(start(body))
            yield
            raise _Done
    except* _Done:
        pass  # Ours, raised above so that the group cancels what still runs.


async def settle() -> None:
    """Let everything that is ready run, without time going by."""
    for _ in range(50):
        await asyncio.sleep(0)
