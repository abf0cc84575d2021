"""Telling how far a flow is, without holding it up."""

import asyncio
from datetime import timedelta

import pytest
import structlog

from agents.core.errors import FatalError, RetriableError
from agents.flow import execution
from agents.flow.execution import Options
from agents.flow.graph import Graph, Task
from agents.flow.progress import DelayingReporter, ImmediateReporter, Reporter, Stats, new_reporter
from tests.support.clock import FakeClock


class Written:
    """What was written, and when."""

    def __init__(self, seconds: float = 0, error: Exception | None = None) -> None:
        self.lines: list[tuple[float, int]] = []
        self._seconds = seconds
        self._error = error

    async def __call__(self, stats: Stats) -> None:
        """Write, which takes a while, and may fail."""
        await asyncio.sleep(self._seconds)
        if self._error is not None:
            raise self._error
        self.lines.append((asyncio.get_running_loop().time() - 1000, stats.percent))


async def run(reporter: Reporter, *seconds: float, clock: FakeClock) -> None:
    """Run a flow of tasks, one after another."""
    graph = Graph("flow")
    before: frozenset[str] = frozenset()
    for number, duration in enumerate(seconds):

        async def body(duration: float = duration) -> None:
            await asyncio.sleep(duration)

        before = frozenset({graph.add(Task(str(number), body, dependencies=before))})
    await execution.run(graph.compile(), clock=clock, options=Options(reporter=reporter))


async def test_immediate(clock: FakeClock) -> None:
    """Contract controllers 2.9: the immediate reporter writes every change when it happens."""
    written = Written()
    await run(ImmediateReporter(written), 1, 1, 1, 1, clock=clock)
    assert written.lines == [(0, 0), (1, 25), (2, 50), (3, 75), (4, 100)]


async def test_slow_writes_hold_up_nothing(clock: FakeClock) -> None:
    """Contract controllers 2.9 (ours): while a report is written no task waits; later reports replace each other."""
    written = Written(seconds=1.5)
    await run(ImmediateReporter(written), 1, 1, 1, 1, clock=clock)
    assert written.lines == [(1.5, 0), (3, 25), (5.5, 100)]


async def test_delaying(clock: FakeClock) -> None:
    """Contract controllers 2.9: first at once, later ones at the period's end, the last one when the flow ends."""
    written = Written()
    await run(DelayingReporter(written, period=timedelta(seconds=5)), 1, 1, 4, 1, 9, clock=clock)
    assert written.lines == [(0, 0), (5, 40), (10, 80), (16, 100)]


async def test_failed_report_is_logged_and_forgotten(clock: FakeClock) -> None:
    """Contract controllers 2.9 (ours): a report that cannot be written fails no flow."""
    with structlog.testing.capture_logs() as logs:
        await run(ImmediateReporter(Written(error=RetriableError("conflict"))), 1, clock=clock)
        await run(ImmediateReporter(Written(error=KeyError("bug"))), 1, clock=clock)
    errors = [line for line in logs if line["event"] == "Progress not reported"]
    assert {type(line["exc_info"]) for line in errors} == {type(None), KeyError}


async def test_fatal_report_ends_the_flow(clock: FakeClock) -> None:
    """A broken invariant is passed on, wherever it shows."""
    with pytest.raises(FatalError):
        await run(ImmediateReporter(Written(error=FatalError("broken"))), 1, clock=clock)


async def test_nothing_is_written_when_everything_ends(clock: FakeClock) -> None:
    """When the process stops, the flow does not wait for a report."""
    written = Written()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            await run(DelayingReporter(written, period=timedelta(seconds=5)), 1, 1, 4, clock=clock)
    assert written.lines == [(0, 0)]


@pytest.mark.parametrize("period", [None, timedelta(0)])
def test_no_period_is_immediate(period: timedelta | None) -> None:
    """Contract controllers 2.9: Shoots report at once unless progressReportPeriod is set."""
    assert type(new_reporter(Written(), period=period)) is ImmediateReporter
    assert type(new_reporter(Written(), period=timedelta(seconds=5))) is DelayingReporter
