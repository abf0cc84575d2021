"""Waits for what a server does in its own time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

T = TypeVar("T")


async def eventually(look: Callable[[], Awaitable[T]], *, what: str, seconds: float = 30.0) -> T:
    """Return the first true answer of a look; fails after a while with what was waited for."""
    last: T | None = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                last = await look()
                if last:
                    return last
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"waited {seconds} s for {what}; last seen: {last!r}")
