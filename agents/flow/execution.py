"""Runs a flow: every task as soon as what it depends on is done.

| A task | What depends on it |
| --- | --- |
| returns | may begin |
| is skipped | may begin once what the skipped task waits for is done |
| raises | is never begun; everything else goes on to its end |
| has not begun when the flow is cancelled | is never begun |

A flow is cancelled by an event or by its deadline: tasks that run are cancelled, no further ones begin, and the result is
`FlowCancelled` with what went wrong so far, so that the caller can still write it down. Cancelling the caller itself is something
else: everything ends at once and nothing is told. A `FatalError` of a task ends everything, too, and is passed on.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

from agents.core.clock import Clock
from agents.core.errors import AgentError, FatalError
from agents.core.logging import bind, get_logger
from agents.core.together import first_of
from agents.flow.errors import ErrorContext, FlowCancelled, FlowFailed, Several, TaskError
from agents.flow.graph import Flow, Task
from agents.flow.progress import Reporter, Stats

log = get_logger(__name__)

CANCELLED = "cancelled"
DEADLINE_EXCEEDED = "deadline exceeded"


class Observer(Protocol):
    """Counts what flows do."""

    def task_ended(self, flow: str, task: str, *, delay: float, duration: float | None, failed: bool) -> None:
        """Take a task: seconds from the flow's start to its own, and its duration, which is None if it was skipped."""
        ...

    def flow_ended(self, flow: str, seconds: float) -> None:
        """Take a flow."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """How a flow is run."""

    reporter: Reporter | None = None
    errors: ErrorContext | None = None
    """Each task is registered there; tells about tasks that failed in the run before."""
    limit: int | None = None
    """How many tasks may run at once; None for all that can."""
    deadline: timedelta | None = None
    cancelled: asyncio.Event | None = None
    observer: Observer | None = None


async def run(flow: Flow, *, clock: Clock, options: Options | None = None) -> None:
    """Run a flow to its end.

    Raises:
        FlowFailed: tasks failed.
        FlowCancelled: it was cancelled, or took too long, before all its tasks were done.
    """
    options = options or Options()
    try:
        await _Execution(flow, clock, options).run()
    except BaseExceptionGroup as group:
        # Nothing but a broken invariant gets out of a task; of several one is enough to end the process.
        raise first_of(group) from group


@dataclass(frozen=True, slots=True)
class _Ended:
    task: str
    error: TaskError | None = None
    begun: bool = True


class _Execution:
    """One run; everything in it happens in the task that calls `run`, but for the tasks' bodies."""

    def __init__(self, flow: Flow, clock: Clock, options: Options) -> None:
        self._flow = flow
        self._clock = clock
        self._options = options
        self._stats = Stats(flow.name, frozenset(name for name, task in flow.tasks.items() if not task.skip))
        self._reported: Stats | None = None
        self._open = {name: len(task.dependencies) for name, task in flow.tasks.items()}
        self._ready: deque[Task] = deque()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ended: asyncio.Queue[_Ended] = asyncio.Queue()
        self._errors: list[TaskError] = []
        cancelled = options.cancelled is not None and options.cancelled.is_set()
        self._cause: str | None = CANCELLED if cancelled else None
        self._done = 0
        self._started = clock.monotonic()

    async def run(self) -> None:
        """Run all tasks; returns if every one has succeeded or is skipped."""
        log.info("Flow started", flow=self._flow.name, tasks=len(self._stats.all))
        async with self._reporting(), asyncio.TaskGroup() as group:
            canceller = group.create_task(self._wait_cancelled())
            self._report()
            self._release([task for task in self._flow.tasks.values() if not task.dependencies])
            self._start(group)
            while self._running:
                await self._process(await self._ended.get())
                self._start(group)
            canceller.cancel()
        self._result()

    def _result(self) -> None:
        seconds = self._clock.monotonic() - self._started
        if self._options.observer is not None:
            self._options.observer.flow_ended(self._flow.name, seconds)
        log.info("Flow ended", flow=self._flow.name, durationSeconds=round(seconds, 3), failed=len(self._errors))
        if self._cause is not None and self._done < len(self._flow.tasks):
            raise FlowCancelled(self._flow.name, self._cause, self._errors)
        if self._errors:
            raise FlowFailed(self._flow.name, self._errors)

    def _release(self, tasks: Iterable[Task]) -> None:
        """Let tasks begin that wait for nothing any more; a skipped one is done with that, and releases others."""
        released = deque(tasks)
        while released:
            task = released.popleft()
            if not task.skip:
                self._ready.append(task)
                continue
            log.debug("Task skipped", flow=self._flow.name, task=task.name)
            self._observe(task.name, started=self._clock.monotonic(), skipped=True)
            released.extend(self._dependents_of(task.name))

    def _dependents_of(self, name: str) -> list[Task]:
        """Return the tasks that waited for nothing but this one, which is done."""
        self._done += 1
        free = []
        for dependent in self._flow.dependents[name]:
            self._open[dependent] -= 1
            if self._open[dependent] == 0:
                free.append(self._flow.tasks[dependent])
        return free

    def _start(self, group: asyncio.TaskGroup) -> None:
        """Begin what may begin, and tell how far the flow is."""
        limit = self._options.limit or len(self._flow.tasks)
        while self._ready and len(self._running) < limit and self._cause is None:
            task = self._ready.popleft()
            if self._options.errors is not None:
                self._options.errors.register(task.name)
            self._running[task.name] = group.create_task(self._body(task), name=f"{self._flow.name}/{task.name}")
        stats = replace(self._stats, running=frozenset(self._running))
        if stats != self._reported:
            self._stats = stats
            self._report()

    async def _body(self, task: Task) -> None:
        """Do a task's work and say how it ended; only a fatal error, or the end of everything, gets out."""
        if self._cause is not None:
            self._ended.put_nowait(_Ended(task.name, begun=False))
            return
        started = self._clock.monotonic()
        error: TaskError | None = None
        with bind(flow=self._flow.name, task=task.name):
            log.debug("Task started")
            try:
                await task.run()
            except FatalError:
                raise
            except asyncio.CancelledError as cancelled:
                current = asyncio.current_task()
                if self._cause is None and current is not None and current.cancelling():
                    raise
                error = _failed(task.name, self._cause or CANCELLED, cancelled)
            except Exception as failure:  # noqa: BLE001 - a task's error is the flow's result, never the end of others
                error = _task_error(task.name, failure)
            seconds = round(self._clock.monotonic() - started, 3)
            if error is None:
                log.info("Task succeeded", durationSeconds=seconds)
            else:
                unknown = error.__cause__ if str(error).startswith(_panicked(task.name)) else None
                log.error("Task failed", durationSeconds=seconds, error=error, exc_info=unknown)
        self._observe(task.name, started=started, failed=error is not None)
        self._ended.put_nowait(_Ended(task.name, error))

    async def _process(self, ended: _Ended) -> None:
        del self._running[ended.task]
        if ended.error is not None:
            self._errors.append(ended.error)
            self._stats = replace(self._stats, failed=self._stats.failed | {ended.task})
        elif ended.begun:
            self._stats = replace(self._stats, succeeded=self._stats.succeeded | {ended.task})
            if self._options.errors is not None:
                await self._options.errors.succeeded(ended.task)
            self._release(self._dependents_of(ended.task))

    async def _wait_cancelled(self) -> None:
        """Cancel the flow when somebody says so, or when it takes too long."""
        deadline = self._options.deadline
        cause = CANCELLED
        try:
            async with asyncio.timeout(None if deadline is None else deadline.total_seconds()):
                await (self._options.cancelled or asyncio.Event()).wait()
        except TimeoutError:
            cause = DEADLINE_EXCEEDED
        self._cause = cause
        # A task that is cancelled before its first step would never say that it ended: let all of them take it.
        await asyncio.sleep(0)
        for task in self._running.values():
            task.cancel()

    def _observe(self, name: str, *, started: float, skipped: bool = False, failed: bool = False) -> None:
        if self._options.observer is not None:
            duration = None if skipped else self._clock.monotonic() - started
            delay = started - self._started
            self._options.observer.task_ended(self._flow.name, name, delay=delay, duration=duration, failed=failed)

    def _report(self) -> None:
        self._reported = self._stats
        if self._options.reporter is not None:
            self._options.reporter.report(self._stats)

    @asynccontextmanager
    async def _reporting(self) -> AsyncIterator[None]:
        """Have reports written while the block runs, and the last one after it, unless everything ends at once."""
        reporter = self._options.reporter
        if reporter is None:
            yield
            return
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(reporter.run())
            yield
            writing.cancel()
        await reporter.flush()


def _task_error(task: str, failure: Exception) -> TaskError:
    """Return the error of a task; an exception that is none of ours is what Go calls a panic."""
    if isinstance(failure, AgentError | OSError | ExceptionGroup):
        shown = Several([failure]) if isinstance(failure, ExceptionGroup) else failure
        return _failed(task, str(shown), failure)
    error = TaskError(task, f"{_panicked(task)}: {type(failure).__name__}: {failure}")
    error.__cause__ = failure
    return error


def _failed(task: str, text: str, cause: BaseException) -> TaskError:
    error = TaskError(task, f'task "{task}" failed: {text}')
    error.__cause__ = cause
    return error


def _panicked(task: str) -> str:
    return f'task "{task}" recovered panic'
