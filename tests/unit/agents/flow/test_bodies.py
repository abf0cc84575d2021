"""Bodies made of bodies, and retries, in virtual time."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from agents.core.errors import FatalError, RetriableError
from agents.flow import bodies, retry
from agents.flow.errors import Several, flatten
from agents.flow.graph import Body

SECOND = timedelta(seconds=1)


class Work:
    """A body that takes some time and may fail the first times; remembers when it began and how it ended."""

    def __init__(self, seconds: float = 0, *errors: Exception) -> None:
        self.began: list[float] = []
        self.cancelled: list[float] = []
        self._seconds = seconds
        self._errors = list(errors)

    async def __call__(self) -> None:
        """Do it."""
        loop = asyncio.get_running_loop()
        self.began.append(loop.time() - 1000)
        try:
            await asyncio.sleep(self._seconds)
        except asyncio.CancelledError:
            self.cancelled.append(loop.time() - 1000)
            raise
        if self._errors:
            raise self._errors.pop(0)


A, B, C = RetriableError("a"), RetriableError("b"), RetriableError("c")


async def test_timeout() -> None:
    """Contract controllers 2.9: a body that takes too long is cancelled, and that is its error."""
    work = Work(10)
    with pytest.raises(bodies.BodyTimeout, match="deadline exceeded"):
        await bodies.with_timeout(work, 3 * SECOND)()
    assert work.cancelled == [3]
    await bodies.with_timeout(Work(2), 3 * SECOND)()


async def test_a_bodys_own_timeout_is_not_ours() -> None:
    """A TimeoutError that the body raises itself is passed on as it is."""
    with pytest.raises(TimeoutError):
        await bodies.with_timeout(Work(1, TimeoutError()), 3 * SECOND)()


async def test_retry_until_it_works() -> None:
    """Contract controllers 2.4, 2.9: tried at once, and after each interval."""
    work = Work(1, A, B)
    await bodies.retry_until_timeout(work, interval=5 * SECOND, timeout=60 * SECOND)()
    assert work.began == [0, 6, 12]


async def test_retry_until_timeout() -> None:
    """Contract controllers 2.4, 2.9: when the time is up the last error is the cause, and part of the text."""
    work = Work(1, A, B, C, A, B, C)
    with pytest.raises(retry.RetryTimeout) as caught:
        await bodies.retry_until_timeout(work, interval=5 * SECOND, timeout=10 * SECOND)()
    assert str(caught.value) == "retry failed with deadline exceeded, last error: b"
    assert caught.value.__cause__ is B
    assert asyncio.get_running_loop().time() == 1010


async def test_retry_passes_on_a_fatal_error() -> None:
    """A broken invariant is not tried again."""
    work = Work(0, FatalError("broken"))
    with pytest.raises(FatalError):
        await bodies.retry_until_timeout(work, interval=SECOND, timeout=10 * SECOND)()
    assert work.began == [0]


async def test_recover() -> None:
    """Contract controllers 2.9: a failure goes to the handler, whose own failure counts; a cancellation does not."""
    handled: list[Exception] = []

    async def handler(error: Exception) -> None:
        handled.append(error)

    async def failing(_error: Exception) -> None:
        raise B

    await bodies.recover(Work(0, A), handler)()
    assert handled == [A]
    with pytest.raises(RetriableError, match="b"):
        await bodies.recover(Work(0, A), failing)()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await bodies.recover(Work(9), handler)()
    with pytest.raises(FatalError):
        await bodies.recover(Work(0, FatalError("x")), handler)()
    assert handled == [A]


async def test_sequential() -> None:
    """Contract controllers 2.9: one after another; the first failure ends it."""
    first, second, third = Work(1), Work(1, A), Work(1)
    with pytest.raises(RetriableError, match="a"):
        await bodies.sequential(first, second, third)()
    assert (first.began, second.began, third.began) == ([0], [1], [])


@pytest.mark.parametrize(
    ("combine", "began"),
    [
        (bodies.parallel, [0, 0, 0]),
        (lambda *works: bodies.parallel_n(2, *works), [0, 0, 1]),
        (lambda *works: bodies.parallel_n(0, *works), [0, 0, 0]),
        (lambda *works: bodies.parallel_n(9, *works), [0, 0, 0]),
    ],
)
async def test_parallel(combine: Callable[..., Body], began: list[float]) -> None:
    """Contract controllers 2.9: all run to their end, so many at once, and all errors come out, a single one as it is."""
    works = [Work(1, A), Work(2), Work(3, B)]
    with pytest.raises(Several) as caught:
        await combine(*works)()
    assert caught.value.errors == (A, B)
    assert str(caught.value) == "2 errors: a; b"
    assert [work.began[0] for work in works] == began
    with pytest.raises(RetriableError) as single:
        await combine(Work(1), Work(1, A))()
    assert single.value is A
    await combine()()


async def test_parallel_exit_on_error() -> None:
    """Contract controllers 2.9: the first failure cancels the others, which have ended when it comes out."""
    slow = Work(9)
    with pytest.raises(RetriableError) as caught:
        await bodies.parallel_exit_on_error(slow, Work(2, A))()
    assert caught.value is A
    assert slow.cancelled == [2]
    await bodies.parallel_exit_on_error(Work(1), Work(2))()


def test_flatten() -> None:
    """Contract controllers 2.7: errors within errors come out one by one."""
    assert list(flatten(Several([A, Several([B, ExceptionGroup("g", [C])])]))) == [A, B, C]


async def test_until_ends_with_a_severe_error() -> None:
    """Contract controllers 2.4: minor and "not ok" are tried again, a severe error is raised at once."""
    outcomes = [retry.NOT_OK, retry.minor(A), retry.severe(B)]

    async def attempt() -> retry.Outcome:
        return outcomes.pop(0)

    with pytest.raises(RetriableError) as caught:
        await retry.until(SECOND, attempt)
    assert caught.value is B
    assert asyncio.get_running_loop().time() == 1002


async def test_timeout_without_any_error() -> None:
    """Contract controllers 2.4: if every attempt was just "not ok", the timeout is all there is to say."""

    async def attempt() -> retry.Outcome:
        return retry.NOT_OK

    with pytest.raises(retry.RetryTimeout) as caught:
        await retry.until_timeout(SECOND, 3 * SECOND, attempt)
    assert str(caught.value) == "retry failed with deadline exceeded"


async def test_attempt_that_hangs_is_cancelled() -> None:
    """Contract controllers 2.4: the deadline counts during an attempt, too; a TimeoutError of the attempt is its own."""

    async def hang() -> retry.Outcome:
        await asyncio.sleep(100)
        return retry.OK

    async def fail() -> retry.Outcome:
        raise TimeoutError

    with pytest.raises(retry.RetryTimeout):
        await retry.until_timeout(SECOND, 3 * SECOND, hang)
    with pytest.raises(TimeoutError) as caught:
        await retry.until_timeout(SECOND, 3 * SECOND, fail)
    assert not isinstance(caught.value, retry.RetryTimeout)


@pytest.mark.parametrize(("count", "done"), [(0, False), (3, False), (4, True)])
def test_minor_or_severe(count: int, done: bool) -> None:
    """Contract controllers 2.4: severe as soon as the count is above the threshold."""
    assert retry.minor_or_severe(count, 3, A) == retry.Outcome(done=done, error=A)
