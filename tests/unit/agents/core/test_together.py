"""Two at once."""

import asyncio
from functools import partial

import pytest

from agents.core.errors import AgentError
from agents.core.together import both


async def test_they_run_at_the_same_time() -> None:
    """Each waits for the other one; the answers come in order."""
    here, there = asyncio.Event(), asyncio.Event()

    async def meet(mine: asyncio.Event, other: asyncio.Event, answer: int) -> int:
        mine.set()
        await other.wait()
        return answer

    assert await both(partial(meet, here, there, 1), partial(meet, there, here, 2)) == (1, 2)


@pytest.mark.parametrize("failing_is_first", [True, False])
async def test_a_failure_is_raised_by_itself(*, failing_is_first: bool) -> None:
    """The other one has ended, cancelled, when the error arrives; it is the error, not a group."""
    ended = []

    async def fail() -> None:
        raise AgentError("broken")

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(AgentError, match="broken"):
        await (both(fail, wait) if failing_is_first else both(wait, fail))
    # Whoever fails at once leaves the other one no time to begin.
    assert ended == ([] if failing_is_first else [True])


async def test_a_cancellation_reaches_both() -> None:
    """Whoever waits is cancelled: both have ended before."""
    ended: list[bool] = []
    started = asyncio.Semaphore(0)

    async def wait() -> None:
        started.release()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(both(wait, wait))
        await started.acquire()
        await started.acquire()
        waiting.cancel()
    assert ended == [True, True]


async def test_why_it_failed_stays() -> None:
    """The error keeps its cause, which is often the library's."""

    async def fail() -> None:
        raise AgentError("broken") from OSError("disk")

    async def nothing() -> None:
        return

    with pytest.raises(AgentError, match="broken") as caught:
        await both(fail, nothing)
    assert isinstance(caught.value.__cause__, OSError)


async def test_a_failure_while_being_cancelled_hides_no_cancellation() -> None:
    """What fails on its way out does not turn a cancellation into an error."""
    started = asyncio.Event()

    async def fail_at_the_end() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise AgentError("broken")

    async def wait() -> None:
        await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(both(fail_at_the_end, wait))
        await started.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
    assert waiting.cancelled()
