"""The queue has client-go's semantics."""

import asyncio
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.runtime.workqueue import BASE_DELAY, MAX_DELAY, FailureBucket, QueueShutDown, WorkQueue
from tests.support.virtual_time import VirtualTimeLoop

SECOND = timedelta(seconds=1)


def new_queue(
    bucket: FailureBucket | None = None, base_delay: timedelta = BASE_DELAY, max_delay: timedelta = MAX_DELAY
) -> WorkQueue[str]:
    """Return an empty queue."""
    return WorkQueue(rng=Random(1), bucket=bucket, base_delay=base_delay, max_delay=max_delay)


def now() -> float:
    """Return virtual seconds."""
    return asyncio.get_running_loop().time()


async def test_key_added_twice_is_taken_once() -> None:
    """A key that is added while it waits is not queued a second time."""
    queue = new_queue()
    queue.add("a")
    queue.add("b")
    queue.add("a")
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert len(queue) == 0


async def test_key_added_while_processed_waits_for_done() -> None:
    """A key that is added while it is processed is never given out a second time before `done`, and is after it."""
    queue = new_queue()
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done(key)
    assert len(queue) == 1
    queue.done(await queue.get())
    assert len(queue) == 0


async def test_done_without_new_addition_queues_nothing() -> None:
    """A key that was not added meanwhile is gone after `done`, and can be added again."""
    queue = new_queue()
    queue.add("a")
    queue.done(await queue.get())
    assert len(queue) == 0
    queue.add("a")
    assert await queue.get() == "a"


async def test_get_waits_for_a_key() -> None:
    """`get` on an empty queue returns as soon as a key is added."""
    queue = new_queue()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(queue.get())
        second = group.create_task(queue.get())
        await asyncio.sleep(1)
        queue.add("a")
        queue.add("b")
    assert {first.result(), second.result()} == {"a", "b"}


async def test_cancelled_get_loses_no_key() -> None:
    """A worker that is cancelled just when it was woken passes the key on to the next one."""
    queue = new_queue()
    async with asyncio.TaskGroup() as group:
        cancelled = group.create_task(queue.get())
        waiting = group.create_task(queue.get())
        await asyncio.sleep(1)
        queue.add("a")
        cancelled.cancel()
    assert waiting.result() == "a"


async def test_cancelled_get_without_a_key_leaves_no_trace() -> None:
    """A worker that is cancelled while nothing is queued does not take the next key with it."""
    queue = new_queue()
    async with asyncio.TaskGroup() as group:
        cancelled = group.create_task(queue.get())
        await asyncio.sleep(1)
        cancelled.cancel()
        await asyncio.sleep(1)
        queue.add("a")
    assert await queue.get() == "a"


async def test_add_after_waits() -> None:
    """A delayed key is queued after its delay and not before."""
    queue = new_queue()
    started = now()
    queue.add_after("a", 10 * SECOND)
    assert len(queue) == 0
    assert await queue.get() == "a"
    assert now() - started == 10


@pytest.mark.parametrize(("first", "second"), [(10, 3), (3, 10)])
async def test_add_after_keeps_the_earlier_time(first: int, second: int) -> None:
    """Of two delays of one key the one that ends first counts, and the key is queued once."""
    queue = new_queue()
    started = now()
    queue.add_after("a", first * SECOND)
    queue.add_after("a", second * SECOND)
    queue.done(await queue.get())
    assert now() - started == 3
    await asyncio.sleep(60)
    assert len(queue) == 0


@pytest.mark.parametrize("delay", [timedelta(0), -SECOND])
async def test_add_after_without_delay_adds_now(delay: timedelta) -> None:
    """A delay of nothing is none."""
    queue = new_queue()
    queue.add_after("a", delay)
    assert len(queue) == 1


async def test_backoff_doubles_up_to_the_longest() -> None:
    """Contract 1.9: failed reconciles must back off exponentially from 5 ms to 1000 s."""
    queue = new_queue()
    delays = [queue.add_rate_limited("a").total_seconds() for _ in range(20)]
    assert delays[:4] == [0.005, 0.010, 0.020, 0.040]
    assert delays[17] == pytest.approx(655.36)
    assert delays[18:] == [1000, 1000]


async def test_backoff_is_capped_by_the_queue() -> None:
    """A controller can choose a shorter longest back-off, even one below the first."""
    queue = new_queue(base_delay=SECOND, max_delay=3 * SECOND)
    assert [queue.add_rate_limited("a") for _ in range(4)] == [SECOND, 2 * SECOND, 3 * SECOND, 3 * SECOND]
    tiny = new_queue(base_delay=SECOND, max_delay=SECOND / 2)
    assert tiny.add_rate_limited("a") == SECOND / 2


async def test_backoff_survives_many_failures() -> None:
    """A key that failed thousands of times still has the longest back-off, not an overflow."""
    queue = new_queue()
    for _ in range(5000):
        delay = queue.add_rate_limited("a")
    assert delay == timedelta(seconds=1000)


async def test_backoff_is_per_key() -> None:
    """The failures of one key do not slow down another."""
    queue = new_queue()
    for _ in range(5):
        queue.add_rate_limited("a")
    assert queue.add_rate_limited("b") == timedelta(milliseconds=5)
    assert (queue.num_requeues("a"), queue.num_requeues("b"), queue.num_requeues("c")) == (5, 1, 0)


async def test_forget_starts_over() -> None:
    """After `forget` a key's next back-off is the shortest."""
    queue = new_queue()
    for _ in range(5):
        queue.add_rate_limited("a")
    queue.forget("a")
    assert queue.num_requeues("a") == 0
    assert queue.add_rate_limited("a") == timedelta(milliseconds=5)


async def test_after_replaces_the_backoff_and_still_counts() -> None:
    """A given wait replaces the back-off of that failure; the failure counts for the next."""
    queue = new_queue()
    assert queue.add_rate_limited("a", after=7 * SECOND) == 7 * SECOND
    assert queue.add_rate_limited("a") == timedelta(milliseconds=10)


async def test_api_errors_run_soon_once_the_api_is_back() -> None:
    """Keys that wait because of the API server all run within the spread, not at one moment, and start over."""
    queue = new_queue(base_delay=100 * SECOND)
    keys = [f"key-{number}" for number in range(20)]
    for key in keys:
        queue.add_rate_limited(key, api_error=True)
    assert queue.retry_api_errors(spread=5 * SECOND) == 20
    started = now()
    times = []
    for _ in keys:
        queue.done(await queue.get())
        times.append(now() - started)
    assert max(times) <= 5
    assert len(set(times)) > 10
    assert queue.num_requeues("key-0") == 0


async def test_api_recovery_leaves_other_keys_alone() -> None:
    """Keys that wait for another reason, for a time the server asked for, or that succeeded meanwhile keep their time."""
    queue = new_queue(base_delay=100 * SECOND)
    queue.add_rate_limited("own error")
    queue.add_rate_limited("told to wait", after=60 * SECOND, api_error=True)
    queue.add_after("requeued", 60 * SECOND)
    queue.add_rate_limited("succeeded", api_error=True)
    queue.forget("succeeded")
    assert queue.retry_api_errors(spread=5 * SECOND) == 0
    await asyncio.sleep(59)
    assert len(queue) == 0


async def test_key_that_ran_is_not_moved_by_api_recovery() -> None:
    """Once its back-off is over a key no longer waits for the API server."""
    queue = new_queue()
    queue.add_rate_limited("a", api_error=True)
    await queue.get()
    assert queue.retry_api_errors(spread=5 * SECOND) == 0


async def test_shut_down_ends_get_after_the_rest() -> None:
    """After `shut_down` what is queued is still given out, then every waiting `get` ends; nothing comes in any more."""
    queue = new_queue()
    queue.add("a")
    queue.add_after("later", SECOND)
    queue.shut_down()
    queue.add("b")
    queue.add_after("c", SECOND)
    assert await queue.get() == "a"
    with pytest.raises(QueueShutDown):
        await queue.get()
    await asyncio.sleep(10)
    assert len(queue) == 0


async def test_shut_down_wakes_waiting_workers() -> None:
    """Workers that wait when the queue is shut down all end."""
    queue = new_queue()

    async def work() -> str:
        try:
            return await queue.get()
        except QueueShutDown:
            return "ended"

    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(work()) for _ in range(3)]
        await asyncio.sleep(1)
        queue.shut_down()
    assert [worker.result() for worker in workers] == ["ended"] * 3


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "after", "fail", "get", "done"]), st.sampled_from("abc")), max_size=60
    )
)
def test_no_key_is_lost_or_processed_twice_at_once(steps: list[tuple[str, str]]) -> None:
    """Whatever is called in whatever order: no key is ever out twice, and each key that was added comes out afterwards."""

    async def play() -> None:
        """Run a controller for some virtual seconds."""
        queue = new_queue()
        out: set[str] = set()
        owed: set[str] = set()
        for step, key in steps:
            if step == "add":
                queue.add(key)
                owed.add(key)
            elif step == "after":
                queue.add_after(key, SECOND)
                owed.add(key)
            elif step == "fail":
                queue.add_rate_limited(key)
                owed.add(key)
            elif step == "get" and len(queue):
                taken = await queue.get()
                assert taken not in out
                out.add(taken)
                owed.discard(taken)
            elif step == "done" and key in out:
                out.discard(key)
                queue.done(key)
        # Delays can outlast the steps: what was taken may come again, what is owed must come.
        for key in out:
            queue.done(key)
        await asyncio.sleep(0.01)
        queue.retry_api_errors(spread=SECOND)
        seen: set[str] = set()
        while owed - seen:
            key = await queue.get()
            seen.add(key)
            queue.done(key)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(play())


async def test_failures_of_all_keys_share_a_bucket() -> None:
    """Contract controllers 2.1: besides each key's own back-off, failures pass at 10 per second after a burst of 100."""
    queue = new_queue(FailureBucket())
    delays = [queue.add_rate_limited(str(number)).total_seconds() for number in range(150)]
    assert delays[:100] == [0.005] * 100
    assert delays[100] == pytest.approx(0.1)
    assert delays[149] == pytest.approx(5)
    await asyncio.sleep(1000)
    assert [queue.add_rate_limited(f"later {number}").total_seconds() for number in range(100)] == [0.005] * 100


async def test_bucket_never_shortens_a_back_off() -> None:
    """Contract controllers 2.1: of the two limiters the longer wait counts; a wait that the server asks for is not limited."""
    queue = new_queue(FailureBucket(per_second=1, burst=1))
    for _ in range(12):
        last = queue.add_rate_limited("a")
    assert last >= timedelta(seconds=0.005 * 2**11)
    assert queue.add_rate_limited("b", after=SECOND) == SECOND
