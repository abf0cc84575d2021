"""Takes keys from a queue, reconciles them, and decides what happens to each key after that; nobody else does.

| Outcome | Key |
| --- | --- |
| `Result()` | forgotten until a source brings it again |
| `Result(requeue_after=...)` | forgotten, and back after that time |
| `RequeueAfter(after=...)` | as with `Result(requeue_after=...)`, and its reason is logged |
| `RetriableError(after=...)` | back after that time, at most `max_backoff`; the failure still counts |
| `RetriableError`, deadline exceeded, any unknown exception | back after its back-off |
| `TerminalError` | forgotten: only new input is worth another attempt; with `after` back after that time |
| `FatalError` | the process ends |

This is also the only place that logs a failed reconcile. Source: controller-runtime, pkg/internal/controller.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import NoReturn
from uuid import UUID

from agents.core.clock import Clock
from agents.core.errors import AgentError, FatalError, RetriableError, TerminalError
from agents.core.logging import bind, get_logger
from agents.kube.errors import ApiError
from agents.runtime.metrics import Metrics
from agents.runtime.reconcile import Reconciler, Request, RequeueAfter, Result
from agents.runtime.source import Source
from agents.runtime.workqueue import BASE_DELAY, MAX_DELAY, FailureBucket, WorkQueue

log = get_logger(__name__)

DEADLINE = timedelta(minutes=3)
"""Longest reconcile; gardener pkg/controllerutils/miscellaneous.go."""

SECOND_CLUSTER_SHARE = 0.5
"""Part of a reconcile's deadline that calls to a second cluster may take."""

API_RETRY_SPREAD = timedelta(seconds=5)
"""When the API server is back, keys that wait for it run within this time."""


class ReconcileDeadlineExceeded(RetriableError):
    """A reconcile took longer than its controller allows."""


def second_cluster_deadline(deadline: timedelta) -> timedelta:
    """Return how long calls to a second cluster may take in all, so that time is left to write the status into the first.

    Source: gardener pkg/controllerutils/miscellaneous.go (contract controllers 2.1).
    """
    return min(deadline, DEADLINE) * SECOND_CLUSTER_SHARE


@dataclass(frozen=True, slots=True)
class Environment:
    """What a controller needs from the process that runs it."""

    clock: Clock
    rng: Random
    metrics: Metrics


class Controller:
    """Workers over one queue.

    Args:
        name: for logs and metrics; unique in the process.
        reconciler: what is done with a key.
        sources: where keys come from; workers start when all are ready.
        concurrency: number of workers.
        deadline: longest reconcile; None for those that bound each step themselves.
        base_backoff: wait after a key's first failure.
        max_backoff: longest wait after a failure.
        failures: bounds the failures of all keys together; None for no such bound.
    """

    def __init__(
        self,
        *,
        name: str,
        reconciler: Reconciler,
        sources: Sequence[Source],
        concurrency: int = 1,
        deadline: timedelta | None = DEADLINE,
        base_backoff: timedelta = BASE_DELAY,
        max_backoff: timedelta = MAX_DELAY,
        failures: FailureBucket | None = None,
    ) -> None:
        self.name = name
        self._reconciler = reconciler
        self._sources = tuple(sources)
        self._concurrency = concurrency
        self._deadline_seconds = None if deadline is None else deadline.total_seconds()
        self._base_backoff = base_backoff
        self._max_backoff = max_backoff
        self._failures = failures
        self._queue: WorkQueue[Request] | None = None

    async def run(self, environment: Environment) -> None:
        """Start the sources, wait until they are ready, and work until cancelled.

        Raises:
            FatalError: a reconcile said that the process must end.
        """
        queue: WorkQueue[Request] = WorkQueue(
            rng=environment.rng,
            base_delay=self._base_backoff,
            max_delay=self._max_backoff,
            bucket=self._failures,
            observer=environment.metrics.queue(self.name),
        )
        self._queue = queue
        environment.metrics.watch_controller(self.name, queue, workers=self._concurrency)
        try:
            for source in self._sources:
                source.start(queue)
            for source in self._sources:
                await source.wait_ready()
            log.debug("Controller started", controller=self.name, workers=self._concurrency)
            async with asyncio.TaskGroup() as workers:
                for number in range(self._concurrency):
                    workers.create_task(self._work(queue, environment), name=f"{self.name}/{number}")
        finally:
            self._queue = None
            queue.shut_down()
            for source in self._sources:
                source.stop()

    def retry_api_errors(self) -> None:
        """Let keys that wait because of the API server run soon."""
        if self._queue is not None and (keys := self._queue.retry_api_errors(spread=API_RETRY_SPREAD)):
            log.debug("API server is back, not waiting any longer", controller=self.name, keys=keys)

    async def _work(self, queue: WorkQueue[Request], environment: Environment) -> NoReturn:
        while True:
            request = await queue.get()
            reconcile_id = str(UUID(int=environment.rng.getrandbits(128), version=4))
            try:
                with bind(
                    controller=self.name, namespace=request.namespace, name=request.name, reconcileID=reconcile_id
                ):
                    await self._process(request, queue, environment)
            finally:
                queue.done(request)

    async def _process(self, request: Request, queue: WorkQueue[Request], environment: Environment) -> None:
        metrics, clock = environment.metrics, environment.clock
        started = clock.monotonic()
        metrics.reconcile_started(self.name)
        outcome, terminal = "error", False
        try:
            result = await self._reconcile(request, metrics)
            outcome = self._succeeded(request, queue, result)
        except RequeueAfter as error:
            log.info("Reconcile has to wait", error=error, requeueAfterSeconds=error.after.total_seconds())
            outcome = self._succeeded(request, queue, Result(requeue_after=error.after))
        except FatalError:
            raise
        except TerminalError as error:
            terminal = True
            queue.forget(request)
            if error.after is not None:
                queue.add_after(request, error.after)
            log.error("Reconcile failed, waiting for new input", error=error)
        except Exception as error:  # noqa: BLE001 - an unknown exception is retriable; it is logged with its traceback
            self._failed(request, queue, error)
        finally:
            metrics.reconcile_ended(self.name, outcome, clock.monotonic() - started, terminal=terminal)

    async def _reconcile(self, request: Request, metrics: Metrics) -> Result:
        scope = asyncio.timeout(self._deadline_seconds)
        try:
            async with scope:
                return await self._reconciler.reconcile(request)
        except TimeoutError as error:
            if not scope.expired():
                raise
            metrics.reconcile_timed_out(self.name)
            raise ReconcileDeadlineExceeded(
                "reconcile took too long", deadlineSeconds=self._deadline_seconds
            ) from error

    def _succeeded(self, request: Request, queue: WorkQueue[Request], result: Result) -> str:
        queue.forget(request)
        if result.requeue_after is None:
            log.debug("Reconciled")
            return "success"
        queue.add_after(request, result.requeue_after)
        log.debug("Reconciled", requeueAfterSeconds=result.requeue_after.total_seconds())
        return "requeue_after"

    def _failed(self, request: Request, queue: WorkQueue[Request], error: Exception) -> None:
        attempt = queue.num_requeues(request) + 1
        after = error.after if isinstance(error, RetriableError) else None
        if after is not None:
            # A server that asks for five minutes must not let a heartbeat expire.
            after = min(after, self._max_backoff)
        delay = queue.add_rate_limited(request, api_error=waits_for_api(error), after=after)
        known = isinstance(error, AgentError)
        log.error(
            "Reconcile failed",
            error=error,
            attempt=attempt,
            requeueAfterSeconds=delay.total_seconds(),
            exc_info=None if known else error,
        )


def waits_for_api(error: BaseException) -> bool:
    """Return whether an error, or one that it was raised from, came from the API server."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, ApiError):
            return True
        current = current.__cause__
    return False
