"""What is left of structured concurrency once a TaskGroup passes on every failure: the silent return of a long-lived task."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

from agents.core.errors import FatalError


async def run_forever(name: str, body: Callable[[], Awaitable[None]]) -> NoReturn:
    """Run a body that must not end; ending is a bug and stops the program."""
    await body()
    raise FatalError("background task ended", task=name)


async def wait_forever() -> NoReturn:
    """Wait until cancelled."""
    while True:
        await asyncio.Event().wait()
