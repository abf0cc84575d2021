"""Threads that are waited for."""

import asyncio
import threading

import pytest

from agents.core.threads import Stop, run_to_end, run_until_stopped


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


async def test_longer_work_is_given_up_and_waited_for() -> None:
    """After a cancellation the work ends at its next look, before the cancellation is felt; else it has its result."""
    assert await run_until_stopped(lambda _stop: 7) == 7
    started, ended = threading.Event(), threading.Event()

    def work(stop: Stop) -> None:
        started.set()
        try:
            while not ended.wait(0.001):
                stop()
        finally:
            ended.set()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(run_until_stopped(work))
        await asyncio.to_thread(started.wait, 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()
