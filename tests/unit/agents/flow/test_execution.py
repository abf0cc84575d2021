"""Running a flow, in virtual time."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.core.errors import FatalError, RetriableError
from agents.flow import execution
from agents.flow.errors import ErrorContext, FlowCancelled, FlowFailed, TaskError, run_checks
from agents.flow.execution import Options
from agents.flow.graph import Flow, Graph, Task
from agents.flow.progress import Stats
from agents.runtime.metrics import FlowMetrics, Metrics
from tests.support.clock import FakeClock
from tests.support.virtual_time import VirtualTimeLoop


class Book:
    """Tasks that take some time, and when each began and ended."""

    def __init__(self) -> None:
        self.graph = Graph("flow")
        self.began: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.most = 0

    def add(
        self, name: str, *dependencies: str, seconds: float = 1, error: BaseException | None = None, skip: bool = False
    ) -> None:
        """Add a task."""

        async def body() -> None:
            self.began[name] = asyncio.get_running_loop().time() - 1000
            self.most = max(self.most, len(self.began) - len(self.ended))
            try:
                await asyncio.sleep(seconds)
                if error is not None:
                    raise error
            finally:
                self.ended[name] = asyncio.get_running_loop().time() - 1000

        self.graph.add(Task(name, body, skip=skip, dependencies=frozenset(dependencies)))

    @property
    def flow(self) -> Flow:
        """Return the flow."""
        return self.graph.compile()


class Reports:
    """A reporter that keeps everything."""

    def __init__(self) -> None:
        self.stats: list[Stats] = []

    def report(self, stats: Stats) -> None:
        """Keep it."""
        self.stats.append(stats)

    async def run(self) -> None:
        """Wait for the end."""
        await asyncio.Event().wait()

    async def flush(self) -> None:
        """Do nothing."""


@pytest.fixture
def book() -> Book:
    """No tasks yet."""
    return Book()


async def run(book: Book, clock: FakeClock, **options: object) -> None:
    """Run the book's flow."""
    await execution.run(book.flow, clock=clock, options=Options(**options))  # type: ignore[arg-type]


async def test_as_wide_as_possible(book: Book, clock: FakeClock) -> None:
    """Contract controllers 2.9: a task begins the moment its last dependency is done, side by side with others."""
    book.add("a", seconds=1)
    book.add("b", seconds=2)
    book.add("c", "a", seconds=1)
    book.add("d", "a", "b", seconds=1)
    await run(book, clock)
    assert book.began == {"a": 0, "b": 0, "c": 1, "d": 2}


async def test_limit(book: Book, clock: FakeClock) -> None:
    """Contract controllers 2.9: with a limit so many run at once, in the order of definition."""
    for name in "abcd":
        book.add(name)
    await run(book, clock, limit=2)
    assert book.began == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert book.most == 2


async def test_skipped_task_releases_its_dependents_in_its_turn(book: Book, clock: FakeClock) -> None:
    """Contract controllers 2.9: a skipped task does not run; what depends on it still waits for what it would have."""
    book.add("a", seconds=3)
    book.add("b", "a", skip=True)
    book.add("c", "b")
    await run(book, clock)
    assert book.began == {"a": 0, "c": 3}


async def test_failed_task_holds_back_only_its_dependents(book: Book, clock: FakeClock) -> None:
    """Contract controllers 2.9: independent branches run to their end; errors are collected, tagged with their task."""
    book.add("a", error=RetriableError("no quota", limit=5))
    book.add("b", "a")
    book.add("c", "b")
    book.add("d", seconds=5, error=RetriableError("late"))
    book.add("e", seconds=2)
    book.add("f", "e")
    with pytest.raises(FlowFailed) as caught:
        await run(book, clock)
    assert set(book.began) == {"a", "d", "e", "f"}
    assert [(error.task, str(error)) for error in caught.value.errors] == [
        ("a", 'task "a" failed: no quota (limit=5)'),
        ("d", 'task "d" failed: late'),
    ]
    assert isinstance(caught.value.errors[0].__cause__, RetriableError)
    assert str(caught.value) == (
        'flow "flow" encountered task errors: [task "a" failed: no quota (limit=5) task "d" failed: late]'
    )


async def test_exception_is_the_tasks_error(book: Book, clock: FakeClock) -> None:
    """Contract controllers 2.9: an exception that nobody foresaw is that task's error, and logged with its traceback."""
    book.add("a", error=KeyError("x"))
    book.add("b", seconds=5)
    with structlog.testing.capture_logs() as logs, pytest.raises(FlowFailed) as caught:
        await run(book, clock)
    assert [str(error) for error in caught.value.errors] == ["task \"a\" recovered panic: KeyError: 'x'"]
    assert book.ended["b"] == 5
    [line] = [line for line in logs if line["log_level"] == "error"]
    assert isinstance(line["exc_info"], KeyError)


async def test_fatal_error_ends_everything(book: Book, clock: FakeClock) -> None:
    """A broken invariant ends the process, not a task: what runs is cancelled and the error is passed on."""
    book.add("a", error=FatalError("broken"))
    book.add("b", seconds=5)
    with pytest.raises(FatalError, match="broken"):
        await run(book, clock)
    assert book.ended == {"a": 1, "b": 1}


async def test_cancelled_flow_starts_no_more_tasks(book: Book, clock: FakeClock) -> None:
    """Contract controllers 2.9: once cancelled no task begins; the result is "cancelled", with the errors so far."""
    book.add("a", error=RetriableError("first"))
    book.add("b", seconds=9)
    book.add("c", "b")
    cancelled = asyncio.Event()
    asyncio.get_running_loop().call_later(4, cancelled.set)
    with pytest.raises(FlowCancelled) as caught:
        await run(book, clock, cancelled=cancelled)
    assert set(book.began) == {"a", "b"}
    assert book.ended["b"] == 4
    assert [error.task for error in caught.value.errors] == ["a", "b"]
    assert str(caught.value) == (
        'flow "flow" was canceled: cancelled. Encountered task errors: '
        '[task "a" failed: first task "b" failed: cancelled]'
    )


async def test_flow_that_is_cancelled_before_it_starts(book: Book, clock: FakeClock) -> None:
    """Contract controllers 2.9: cancelled from the start, nothing runs and there is no task error."""
    book.add("a")
    cancelled = asyncio.Event()
    cancelled.set()
    with pytest.raises(FlowCancelled) as caught:
        await run(book, clock, cancelled=cancelled)
    assert book.began == {}
    assert str(caught.value) == 'flow "flow" was canceled: cancelled'


@pytest.mark.parametrize("steps", range(8))
async def test_cancelled_around_the_moment_a_task_begins(book: Book, clock: FakeClock, steps: int) -> None:
    """A flow that is cancelled just before, while or after a task begins ends; no task is left without an end."""
    cancelled = asyncio.Event()

    async def cancel() -> None:
        await asyncio.sleep(1)
        for _ in range(steps):
            await asyncio.sleep(0)
        cancelled.set()

    book.add("a")
    book.graph.add(Task("cancel", cancel))
    book.add("b", "a", seconds=50)
    with pytest.raises(FlowCancelled):
        await run(book, clock, cancelled=cancelled)
    assert book.ended.get("b", 1) == 1
    assert book.began.keys() == book.ended.keys()


async def test_cancelled_when_all_is_done_is_a_success(book: Book, clock: FakeClock) -> None:
    """A cancellation that comes with the end of the last task changes nothing."""
    cancelled = asyncio.Event()

    async def cancel() -> None:
        cancelled.set()

    book.graph.add(Task("a", cancel))
    await run(book, clock, cancelled=cancelled)


async def test_deadline_of_a_flow(book: Book, clock: FakeClock) -> None:
    """A flow that takes too long is cancelled, and says so."""
    book.add("a", seconds=100)
    with pytest.raises(FlowCancelled, match="was canceled: deadline exceeded"):
        await run(book, clock, deadline=timedelta(seconds=60))
    assert book.ended == {"a": 60}


async def test_cancelling_the_caller_ends_everything(book: Book, clock: FakeClock) -> None:
    """When the process stops, tasks are cancelled and waited for, and the cancellation goes on."""
    book.add("a", seconds=100)
    book.add("b", "a")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await run(book, clock)
    assert book.ended == {"a": 10}


async def test_stray_cancellation_is_a_failure(book: Book, clock: FakeClock) -> None:
    """A task that raises CancelledError although nobody cancelled it fails; the flow does not wait for it for ever."""
    book.add("a", error=asyncio.CancelledError())
    with pytest.raises(FlowFailed, match='task "a" failed: cancelled'):
        await run(book, clock)


async def test_empty_flow(book: Book, clock: FakeClock) -> None:
    """A flow without tasks, or with skipped ones alone, succeeds; its progress is 0."""
    await run(book, clock)
    book.add("a", skip=True)
    reports = Reports()
    await run(book, clock, reporter=reports)
    assert {stats.percent for stats in reports.stats} == {0}


async def test_progress(book: Book, clock: FakeClock) -> None:
    """Contract controllers 2.9: percentage of the tasks that are not skipped, and the names of those that run."""
    book.add("b", seconds=1)
    book.add("a", seconds=2)
    book.add("x", "a", skip=True)
    book.add("c", "a", seconds=1)
    reports = Reports()
    await run(book, clock, reporter=reports)
    assert [(stats.percent, stats.description) for stats in reports.stats] == [
        (0, "Starting flow"),
        (0, "Starting flow"),
        (33, "a"),
        (66, "c"),
        (100, "flow finished"),
    ]
    assert Stats("f", frozenset("abcd"), frozenset("a"), running=frozenset("dc")).description == "c, d"
    assert Stats("f", frozenset("abcd"), frozenset("a"), frozenset("b")).pending == {"c", "d"}


async def test_errors_of_the_run_before_are_cleaned_up_at_once(book: Book, clock: FakeClock) -> None:
    """Contract controllers 2.9: a task that failed last time and succeeds now is cleaned up before its dependents begin."""
    book.add("a")
    book.add("b", "a")
    book.add("c", error=RetriableError("again"))
    cleaned: list[tuple[str, float]] = []

    async def clean(task: str) -> None:
        cleaned.append((task, asyncio.get_running_loop().time() - 1000))
        await asyncio.sleep(2)

    context = ErrorContext("flow", last_errors=["a", "c", "gone"], clean=clean)
    with pytest.raises(FlowFailed):
        await run(book, clock, errors=context)
    assert cleaned == [("a", 1)]
    assert book.began["b"] == 3


async def test_an_id_is_registered_once(book: Book, clock: FakeClock) -> None:
    """Contract controllers 2.9: each id may be registered once in an error context; skipped tasks are not."""
    book.add("a")
    book.add("s", skip=True)
    context = ErrorContext("flow")
    await run(book, clock, errors=context)
    context.register("s")
    with pytest.raises(FatalError):
        context.register("a")


async def test_checks_before_the_flow() -> None:
    """Contract controllers 2.9: pre-flow checks run one after another under the same rules; the first failure ends them."""
    cleaned: list[str] = []

    async def clean(task: str) -> None:
        cleaned.append(task)

    async def good() -> None:
        pass

    async def bad() -> None:
        raise RetriableError("not there")

    context = ErrorContext("checks", last_errors=["first"], clean=clean)
    with pytest.raises(TaskError) as caught:
        await run_checks(context, [("first", good), ("second", bad), ("third", good)])
    assert (caught.value.task, str(caught.value), cleaned) == ("second", "second failed (not there)", ["first"])
    context.register("third")


async def test_metrics(book: Book, clock: FakeClock) -> None:
    """Contract core 1.6: flow_task_delay_seconds, flow_task_duration_seconds, flow_task_results_total, flow_duration_seconds."""
    book.add("a", seconds=2)
    book.add("b", "a", error=RetriableError("x"))
    book.add("c", "a", skip=True)
    metrics = Metrics()
    with pytest.raises(FlowFailed):
        await run(book, clock, observer=FlowMetrics(metrics))
    text = metrics.render().decode()
    for line in (
        'flow_task_delay_seconds_sum{flow="flow",skipped="false",task_id="b"} 2.0',
        'flow_task_delay_seconds_sum{flow="flow",skipped="true",task_id="c"} 2.0',
        'flow_task_duration_seconds_sum{flow="flow",task_id="a"} 2.0',
        'flow_task_results_total{flow="flow",result="error",task_id="b"} 1.0',
        'flow_task_results_total{flow="flow",result="success",task_id="a"} 1.0',
        'flow_duration_seconds_sum{flow="flow"} 3.0',
    ):
        assert line in text


@st.composite
def books(draw: st.DrawFn) -> tuple[Book, dict[str, tuple[frozenset[str], bool, bool, int]]]:
    """Draw a flow: each task depends on some earlier ones, may be skipped or fail, and takes some time."""
    book, plan = Book(), dict[str, tuple[frozenset[str], bool, bool, int]]()
    for number in range(draw(st.integers(0, 12))):
        dependencies = draw(st.frozensets(st.sampled_from(sorted(plan)), max_size=4)) if plan else frozenset()
        skip, fails, seconds = draw(st.booleans()), draw(st.integers(0, 4)) == 0, draw(st.integers(0, 5))
        plan[f"t{number}"] = (dependencies, skip, fails, seconds)
        error = RetriableError("fails") if fails else None
        book.add(f"t{number}", *dependencies, seconds=seconds, error=error, skip=skip)
    return book, plan


def in_virtual_time(body: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine function in virtual time."""

    async def start() -> None:
        await body()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(start())


@settings(deadline=None, max_examples=150)
@given(drawn=books(), limit=st.none() | st.integers(1, 4))
def test_any_flow_runs_what_it_may_and_nothing_else(
    drawn: tuple[Book, dict[str, tuple[frozenset[str], bool, bool, int]]], limit: int | None
) -> None:
    """Contract controllers 2.9: whatever the graph: who runs, in which order, how many at once, and which errors there are."""
    book, plan = drawn
    released: set[str] = set()
    done: dict[str, float] = {}
    earliest: dict[str, float] = {}
    for name, (dependencies, skip, fails, seconds) in plan.items():
        if not dependencies <= done.keys():
            continue
        released.add(name)
        earliest[name] = max((done[dependency] for dependency in dependencies), default=0)
        if skip or not fails:
            done[name] = earliest[name] + (0 if skip else seconds)
    runs = {name for name in released if not plan[name][1]}
    failing = {name for name in runs if plan[name][2]}
    reports = Reports()

    async def check() -> None:
        failed: set[str] = set()
        try:
            await execution.run(book.flow, clock=FakeClock(), options=Options(limit=limit, reporter=reports))
        except FlowFailed as error:
            failed = {task.task for task in error.errors}
        assert failed == failing

    in_virtual_time(check)
    assert set(book.began) == runs
    for name in runs:
        for dependency in plan[name][0]:
            assert plan[dependency][1] or book.ended[dependency] <= book.began[name]
    if limit is None:
        assert book.began == {name: earliest[name] for name in runs}
    else:
        assert book.most <= limit
    last = reports.stats[-1]
    assert [set(names) for names in (last.succeeded, last.failed, last.running)] == [runs - failing, failing, set()]
    assert [stats.percent for stats in reports.stats] == sorted(stats.percent for stats in reports.stats)


@settings(deadline=None, max_examples=100)
@given(drawn=books(), after=st.integers(0, 12), limit=st.none() | st.integers(1, 3))
def test_any_flow_can_be_cancelled_at_any_time(
    drawn: tuple[Book, dict[str, tuple[frozenset[str], bool, bool, int]]], after: int, limit: int | None
) -> None:
    """Contract controllers 2.9: a cancelled flow ends at that moment, every task that began has ended, and none begins later."""
    book, _ = drawn

    async def check() -> None:
        cancelled = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.call_later(after, cancelled.set)
        with contextlib.suppress(FlowFailed, FlowCancelled):
            await execution.run(book.flow, clock=FakeClock(), options=Options(cancelled=cancelled, limit=limit))
        assert loop.time() - 1000 <= after + 1e-6

    in_virtual_time(check)
    assert book.began.keys() == book.ended.keys()
    assert all(moment <= after + 1e-6 for moment in book.ended.values())
