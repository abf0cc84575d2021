"""Long-lived tasks that end are bugs."""

import asyncio

import pytest

from agents.core.errors import FatalError
from agents.runtime.tasks import run_forever, wait_forever


async def test_silent_return_is_fatal() -> None:
    """A body that must not end, and does, raises a fatal error that names it."""

    async def body() -> None:
        return

    with pytest.raises(FatalError) as caught:
        await run_forever("reflector", body)
    assert caught.value.fields == {"task": "reflector"}


async def test_failure_is_passed_on() -> None:
    """An error of the body is not replaced."""

    async def body() -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        await run_forever("reflector", body)


async def test_wait_forever_ends_by_cancellation() -> None:
    """Waiting for ever ends when it is cancelled, not before."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(100_000):
            await wait_forever()
