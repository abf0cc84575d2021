"""Starts the parts of a process in order, and stops them in reverse, however it ends.

::

    servers -> clusters -> election, if there is one -> startup steps, one after another -> controllers

Servers come first, so that probes answer while everything else may still wait. An API server that is away, or forbids, is
waited for by whoever needs it; it ends nothing. Of several replicas all serve and keep their clusters; what comes after the election
is the leader's alone, and the lease is given back once all of that has ended.

What ends the process: a signal or `Shutdown.request` (exit code 0, or 1 if the request is a failure), an error that nobody handles
(1). From then on there are five seconds for everything; what still runs after that is abandoned (1). A second
signal ends the process at once (1). Source: contract 1.7.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn

from agents.core.errors import AgentError
from agents.core.logging import get_logger
from agents.core.shutdown import Shutdown
from agents.runtime.cluster import Cluster
from agents.runtime.controller import Controller, Environment
from agents.runtime.health import InformerSync
from agents.runtime.tasks import run_forever, wait_forever

log = get_logger(__name__)

STOP_DEADLINE = timedelta(seconds=5)
"""From the first reason to stop until the end of the process."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)

StartupStep = Callable[[], Awaitable[Cluster | None]]
"""Done once before the controllers start; an error ends the process. A cluster that it returns is run from then on."""


End = Callable[[], None]
"""Ends a part of a running process; safe to repeat."""


def to_console(line: str) -> None:
    """Say something where an operator looks when a machine does not come up (contract 1.7)."""
    print(line, flush=True)  # noqa: T201


@dataclass(eq=False, slots=True)
class _Part:
    """Something that runs after the startup steps."""

    name: str
    body: Callable[[], Awaitable[None]]
    task: "asyncio.Task[NoReturn] | None" = None


class _StopRequested(Exception):
    """Leaves all parts in order; not an error."""


class Manager:
    """Runs one process.

    Args:
        environment: clock, randomness and metrics of the process.
        shutdown: the way for everyone to stop it.
        informer_sync: told about each cluster.
        servers: entered first, left last.
        clusters: those that are known from the start.
        election: entered when this process may lead; left when everything that only a leader does has ended.
        startup: steps before the controllers.
        controllers: those that are known from the start; see `add_controller`.
        stop_deadline: for everything, from the first reason to stop.
        abort: ends the process at once with a code.
        say: told each error that stops it, in a line for people.
    """

    def __init__(
        self,
        *,
        environment: Environment,
        shutdown: Shutdown,
        informer_sync: InformerSync,
        servers: Sequence[AbstractAsyncContextManager[object]] = (),
        clusters: Sequence[Cluster] = (),
        election: AbstractAsyncContextManager[object] | None = None,
        startup: Sequence[StartupStep] = (),
        controllers: Sequence[Controller] = (),
        stop_deadline: timedelta = STOP_DEADLINE,
        abort: Callable[[int], None] = os._exit,
        say: Callable[[str], None] = to_console,
    ) -> None:
        self._environment = environment
        self._shutdown = shutdown
        self._informer_sync = informer_sync
        self._servers = tuple(servers)
        self._clusters = tuple(clusters)
        self._election = nullcontext() if election is None else election
        self._startup = tuple(startup)
        self._controllers: list[Controller] = []
        self._parts: list[_Part] = []
        self._stop_deadline = stop_deadline
        self._abort = abort
        self._say = say
        self._signals = 0
        self._group: asyncio.TaskGroup | None = None
        self._early: asyncio.TaskGroup | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        for controller in controllers:
            self.add_controller(controller)

    def add_controller(self, controller: Controller, *, early: bool = False) -> End:
        """Run a further controller: after the startup steps, or at once if these are done.

        Args:
            controller: to be run.
            early: a startup step needs it, so it does not wait for their end.

        Returns:
            Function that ends it, and nothing else.
        """

        async def run() -> None:
            await controller.run(self._environment)

        self._controllers.append(controller)
        end_task = self.add_task(f"controller {controller.name}", run, early=early)

        def end() -> None:
            if controller in self._controllers:
                self._controllers.remove(controller)
            end_task()

        return end

    def add_task(self, name: str, body: Callable[[], Awaitable[None]], *, early: bool = False) -> End:
        """Run something that must not end of itself: after the startup steps, or at once if these are done, or if it is early.

        Returns:
            Function that ends it, and nothing else.
        """
        part = _Part(name, body)
        self._parts.append(part)
        group = self._early if early else self._group
        if group is not None:
            self._start(group, part)

        def end() -> None:
            if part in self._parts:
                self._parts.remove(part)
            if part.task is not None:
                part.task.cancel()

        return end

    async def run(self) -> int:
        """Run until something ends it.

        Returns:
            Exit code: 0 after a signal, or a request that is no failure, if everything stopped in time and without an error;
            else 1.
        """
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            async with asyncio.TaskGroup() as outer:
                outer.create_task(self._watch_shutdown())
                await self._guard("parts", self._run_parts)
        except BaseExceptionGroup as group:
            return self._exit_code(group) or int(self._shutdown.failed)
        finally:
            if self._watchdog is not None:
                self._watchdog.cancel()
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    async def _run_parts(self) -> None:
        """Enter the parts; each `async with` leaves its part after the ones inside it."""
        async with AsyncExitStack() as servers:
            for server in self._servers:
                await servers.enter_async_context(server)
            async with asyncio.TaskGroup() as clusters:
                self._early = clusters
                for cluster in self._clusters:
                    self._start_cluster(clusters, cluster)
                async with self._election:
                    await self._run_controllers(clusters)

    async def _run_controllers(self, clusters: asyncio.TaskGroup) -> NoReturn:
        for step in self._startup:
            if (yielded := await step()) is not None:
                self._start_cluster(clusters, yielded)
        async with asyncio.TaskGroup() as controllers:
            self._group = controllers
            for part in tuple(self._parts):
                if part.task is None:
                    self._start(controllers, part)
            await wait_forever()

    def _start_cluster(self, group: asyncio.TaskGroup, cluster: Cluster) -> None:
        if cluster.vital:
            self._informer_sync.add(cluster.cache)
        cluster.cache.on_recovery(self._retry_api_errors)
        group.create_task(self._guard(f"cluster {cluster.name}", cluster.run))

    def _start(self, group: asyncio.TaskGroup, part: "_Part") -> None:
        part.task = group.create_task(self._guard(part.name, part.body))

    def _retry_api_errors(self) -> None:
        for controller in self._controllers:
            controller.retry_api_errors()

    async def _guard(self, name: str, body: Callable[[], Awaitable[None]]) -> NoReturn:
        """Run a part; its failure is the beginning of the stop."""
        try:
            await run_forever(name, body)
        except Exception:
            self._begin_stop()
            raise

    async def _watch_shutdown(self) -> NoReturn:
        await self._shutdown.wait()
        self._begin_stop()
        raise _StopRequested

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals > 1:
            log.error("Second signal, ending at once", signal=number.name)
            self._abort(1)
        self._shutdown.request(f"signal {number.name}")

    def _begin_stop(self) -> None:
        if self._watchdog is None:
            loop = asyncio.get_running_loop()
            self._watchdog = loop.call_later(self._stop_deadline.total_seconds(), self._give_up)

    def _give_up(self) -> None:
        log.error("Stop took too long, abandoning what still runs")
        self._abort(1)

    def _exit_code(self, group: BaseExceptionGroup[BaseException]) -> int:
        """Return 0 if all that happened is a request to stop; log everything else."""
        errors = group.split(_StopRequested)[1]
        if errors is None:
            return 0
        for error in _leaves(errors):
            known = isinstance(error, AgentError)
            log.error("Stopped by an error", error=error, exc_info=None if known else error)
            self._say(f"error: {error}")
        return 1


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [
        leaf
        for error in group.exceptions
        for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]
