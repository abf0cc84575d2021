"""Threads that are waited for."""

import asyncio
import threading

import pytest

from agents.core.threads import run_to_end


async def test_result_and_error_pass_through() -> None:
    """The function's result and its exception reach the caller."""
    assert await run_to_end(int, "ff", base=16) == 255
    with pytest.raises(ValueError, match="invalid literal"):
        await run_to_end(int, "x")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancelled_caller_waits_for_the_thread(fails: bool) -> None:
    """After a cancellation the work has ended before the cancellation is felt, whether it failed or not."""
    started, release = threading.Event(), threading.Event()
    done: list[bool] = []

    def work() -> None:
        started.set()
        release.wait(5)
        done.append(True)
        if fails:
            raise ValueError("late")

    async with asyncio.TaskGroup() as group:
        task = group.create_task(run_to_end(work))
        await asyncio.to_thread(started.wait, 5)
        task.cancel()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == [True]
