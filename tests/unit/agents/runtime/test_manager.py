"""The manager starts parts in order and stops them in reverse, however it ends."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random

import pytest
import structlog

from agents.core.errors import FatalError, RetriableError
from agents.core.shutdown import Shutdown
from agents.kube.client import Client
from agents.kube.errors import Forbidden
from agents.kube.events import EventRecorder
from agents.kube.models import NODES
from agents.runtime.cache import Cache
from agents.runtime.cluster import Cluster
from agents.runtime.controller import Controller, Environment
from agents.runtime.health import InformerSync
from agents.runtime.manager import Manager
from agents.runtime.reconcile import Request, Result
from agents.runtime.source import KindSource, StartupSource
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.support.tasks import settle

A = Request("", "a")


class Diary:
    """What happened, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        """Write a line."""
        self.lines.append(line)

    @asynccontextmanager
    async def server(self, name: str) -> AsyncIterator[None]:
        """A server that notes when it is entered and left."""
        self.note(f"+{name}")
        try:
            yield
        finally:
            self.note(f"-{name}")

    def controller(self, name: str, error: Exception | None = None, slow_stop: float = 0) -> Controller:
        """A controller that notes when its reconcile begins and ends."""
        diary = self

        class Reconciler:
            async def reconcile(self, _request: Request) -> Result:
                diary.note(f"+{name}")
                if error is not None:
                    raise error
                try:
                    await asyncio.sleep(100_000)
                finally:
                    await asyncio.sleep(slow_stop)
                    diary.note(f"-{name}")
                return Result()

        return Controller(name=name, reconciler=Reconciler(), sources=[StartupSource([A])], deadline=None)


@pytest.fixture
def diary() -> Diary:
    """Collects what happens."""
    return Diary()


@pytest.fixture
def shutdown() -> Shutdown:
    """Nobody has asked to stop yet."""
    return Shutdown()


@pytest.fixture
def cluster(api: FakeApi, clock: FakeClock, diary: Diary) -> Cluster:
    """A cluster that notes when its client is closed."""

    class NotingClient(Client):
        async def close(self) -> None:
            diary.note("-cluster")
            await super().close()

    client = NotingClient(transport=api, rng=Random(1))
    return Cluster(
        name="shoot",
        client=client,
        cache=Cache(client=client, clock=clock, rng=Random(1)),
        recorder=EventRecorder(client=client, instance="host", clock=clock),
    )


class Aborts:
    """Stands for the end of the process."""

    def __init__(self) -> None:
        self.codes: list[int] = []

    def __call__(self, code: int) -> None:
        """Note the code."""
        self.codes.append(code)


@pytest.fixture
def aborts() -> Aborts:
    """Collects exit codes."""
    return Aborts()


def new_manager(environment: Environment, shutdown: Shutdown, aborts: Aborts, **parts: object) -> Manager:
    """Return a manager that notes an abort instead of ending the process."""
    return Manager(
        environment=environment,
        shutdown=shutdown,
        informer_sync=InformerSync(clock=environment.clock),
        abort=aborts,
        **parts,  # type: ignore[arg-type]
    )


async def run_for(manager: Manager, seconds: float, shutdown: Shutdown) -> int:
    """Run a manager, ask it to stop after some time, return its exit code."""
    async with asyncio.TaskGroup() as group:
        running = group.create_task(manager.run())
        await asyncio.sleep(seconds)
        shutdown.request("end of the test")
    return running.result()


async def test_order(
    environment: Environment, shutdown: Shutdown, aborts: Aborts, cluster: Cluster, diary: Diary
) -> None:
    """Servers, cluster, startup steps one after another, controllers; and the same backwards. Exit code 0."""

    async def step(name: str) -> None:
        diary.note(f"+{name}")
        await asyncio.sleep(10)
        diary.note(f"-{name}")

    manager = new_manager(
        environment,
        shutdown,
        aborts,
        servers=[diary.server("health"), diary.server("metrics")],
        clusters=[cluster],
        startup=[lambda: step("first"), lambda: step("second")],
        controllers=[diary.controller("lease")],
    )
    assert await run_for(manager, 100, shutdown) == 0
    assert diary.lines == [
        "+health", "+metrics", "+first", "-first", "+second", "-second", "+lease",
        "-lease", "-cluster", "-metrics", "-health",
    ]  # fmt: skip
    assert aborts.codes == []


async def test_step_can_yield_a_cluster(
    environment: Environment, shutdown: Shutdown, aborts: Aborts, cluster: Cluster, api: FakeApi
) -> None:
    """A cluster that a startup step returns runs from then on, is part of the readiness check, and is closed at the end."""
    api.put(NODES, {"metadata": {"name": "a"}})
    informer_sync = InformerSync(clock=environment.clock)
    informer = cluster.cache.informer(NODES)

    async def connect() -> Cluster:
        await asyncio.sleep(30)
        return cluster

    async def use() -> None:
        await informer.wait_synced()

    manager = Manager(
        environment=environment, shutdown=shutdown, informer_sync=informer_sync, startup=[connect, use], abort=aborts
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(manager.run())
        await asyncio.sleep(29)
        assert await informer_sync.readiness() is not None
        await asyncio.sleep(2)
        assert await informer_sync.readiness() is None
        shutdown.request("end of the test")
    assert running.result() == 0
    assert api.closed


async def test_controllers_can_be_added_at_any_time(
    environment: Environment, shutdown: Shutdown, aborts: Aborts, diary: Diary
) -> None:
    """Contract 1.8 (ours): controllers bound to the node must be able to start in the running process."""
    manager = new_manager(environment, shutdown, aborts)

    async def step() -> None:
        manager.add_controller(diary.controller("early"))
        await asyncio.sleep(10)
        diary.note("steps done")

    manager = new_manager(environment, shutdown, aborts, startup=[step])
    async with asyncio.TaskGroup() as group:
        running = group.create_task(manager.run())
        await asyncio.sleep(100)
        manager.add_controller(diary.controller("late"))
        await settle()
        assert diary.lines == ["steps done", "+early", "+late"]
        shutdown.request("end of the test")
    assert running.result() == 0


async def test_an_early_controller_does_not_wait_for_the_startup(
    environment: Environment, shutdown: Shutdown, aborts: Aborts, diary: Diary
) -> None:
    """What a step waits for can depend on a controller: that runs at once, and once only."""

    async def step() -> None:
        manager.add_controller(diary.controller("early"), early=True)
        manager.add_controller(diary.controller("other"))
        await asyncio.sleep(10)
        diary.note("steps done")

    manager = new_manager(environment, shutdown, aborts, startup=[step])
    async with asyncio.TaskGroup() as group:
        running = group.create_task(manager.run())
        await asyncio.sleep(100)
        assert diary.lines == ["+early", "steps done", "+other"]
        shutdown.request("end of the test")
    assert running.result() == 0
    assert sorted(diary.lines[3:]) == ["-early", "-other"]


async def test_a_part_can_be_ended_alone(
    environment: Environment, shutdown: Shutdown, aborts: Aborts, diary: Diary
) -> None:
    """A controller and a task are ended by what adding them returned; the rest runs on, and one of the same name can follow."""
    manager = new_manager(environment, shutdown, aborts)

    async def task() -> None:
        diary.note("+task")
        try:
            await asyncio.sleep(100_000)
        finally:
            diary.note("-task")

    never = manager.add_controller(diary.controller("never"))
    never()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(manager.run())
        await settle()
        ends = [manager.add_controller(diary.controller("a")), manager.add_task("task", task)]
        manager.add_controller(diary.controller("b"))
        await settle()
        for end in (*ends, *ends):
            end()
        await settle()
        assert diary.lines == ["+task", "+a", "+b", "-task", "-a"]
        manager.add_controller(diary.controller("a"))
        await settle()
        assert diary.lines[5:] == ["+a"]
        shutdown.request("end of the test")
    assert running.result() == 0


async def test_unsynced_informers_end_nothing(
    environment: Environment, shutdown: Shutdown, aborts: Aborts, cluster: Cluster, api: FakeApi, diary: Diary
) -> None:
    """Contract 1.5: an informer that gets 403 must be tried on; the process runs, and what needs no cache works meanwhile."""
    api.fail(Forbidden("no", status=403))
    waiting = Controller(
        name="waiting",
        reconciler=diary.controller("x")._reconciler,
        sources=[KindSource(cluster.cache.informer(NODES)), StartupSource([A])],
    )
    manager = new_manager(
        environment, shutdown, aborts, clusters=[cluster], controllers=[waiting, diary.controller("lease")]
    )
    assert await run_for(manager, 3600, shutdown) == 0
    assert diary.lines == ["+lease", "-lease", "-cluster"]


async def test_fatal_error_of_a_controller_exits_1(
    environment: Environment, shutdown: Shutdown, aborts: Aborts, diary: Diary
) -> None:
    """An error that nobody handles stops everything in order; it is logged with its fields, and the exit code is 1."""
    manager = new_manager(
        environment,
        shutdown,
        aborts,
        servers=[diary.server("health")],
        controllers=[diary.controller("good"), diary.controller("bad", FatalError("broken"))],
    )
    with structlog.testing.capture_logs() as logs:
        assert await manager.run() == 1
    assert diary.lines == ["+health", "+good", "+bad", "-good", "-health"]
    [line] = [line for line in logs if line["log_level"] == "error"]
    assert (line["event"], str(line["error"]), line["exc_info"]) == ("Stopped by an error", "broken", None)


async def test_failing_startup_step_exits_1(
    environment: Environment, shutdown: Shutdown, aborts: Aborts, diary: Diary
) -> None:
    """Contract 1.4: an error in a startup step must end the process; no controller has started."""

    async def step() -> None:
        raise RetriableError("no bootstrap token")

    manager = new_manager(
        environment,
        shutdown,
        aborts,
        servers=[diary.server("health")],
        startup=[step],
        controllers=[diary.controller("never")],
    )
    assert await manager.run() == 1
    assert diary.lines == ["+health", "-health"]


async def test_unknown_error_is_logged_with_its_traceback(
    environment: Environment, shutdown: Shutdown, aborts: Aborts
) -> None:
    """An exception that is none of ours ends the process with its traceback in the log."""

    async def step() -> None:
        raise ValueError("boom")

    with structlog.testing.capture_logs() as logs:
        assert await new_manager(environment, shutdown, aborts, startup=[step]).run() == 1
    [line] = logs
    assert isinstance(line["exc_info"], ValueError)


async def test_request_interrupts_startup(
    environment: Environment, shutdown: Shutdown, aborts: Aborts, diary: Diary
) -> None:
    """A request to stop does not wait for a startup step, a pending certificate for example."""

    async def step() -> None:
        try:
            await asyncio.sleep(900)
        finally:
            diary.note("step interrupted")

    assert await run_for(new_manager(environment, shutdown, aborts, startup=[step]), 10, shutdown) == 0
    assert diary.lines == ["step interrupted"]


async def test_workers_get_five_seconds(
    environment: Environment, shutdown: Shutdown, aborts: Aborts, diary: Diary
) -> None:
    """Contract 1.7: work that ends within 5 s of the stop must be waited for."""
    manager = new_manager(environment, shutdown, aborts, controllers=[diary.controller("slow", slow_stop=4.9)])
    assert await run_for(manager, 10, shutdown) == 0
    await asyncio.sleep(60)
    assert diary.lines == ["+slow", "-slow"]
    assert aborts.codes == []


async def test_work_that_does_not_stop_is_abandoned(
    environment: Environment, shutdown: Shutdown, aborts: Aborts, diary: Diary
) -> None:
    """Contract 1.7: after 5 s what still runs must be abandoned, and the process must end with an error."""
    manager = new_manager(environment, shutdown, aborts, controllers=[diary.controller("stuck", slow_stop=60)])
    async with asyncio.TaskGroup() as group:
        group.create_task(manager.run())
        await asyncio.sleep(10)
        shutdown.request("end of the test")
        await asyncio.sleep(4.9)
        assert aborts.codes == []
        await asyncio.sleep(0.2)
        assert aborts.codes == [1]


async def test_deadline_counts_from_the_first_error(
    environment: Environment, shutdown: Shutdown, aborts: Aborts, diary: Diary
) -> None:
    """Contract 1.7: the 5 s begin with the first error, too, not only with a request."""
    manager = new_manager(
        environment,
        shutdown,
        aborts,
        stop_deadline=timedelta(seconds=3),
        controllers=[diary.controller("stuck", slow_stop=60), diary.controller("bad", FatalError("broken"))],
    )
    assert await manager.run() == 1
    assert aborts.codes == [1]


async def test_first_signal_stops_second_aborts(
    environment: Environment, shutdown: Shutdown, aborts: Aborts, diary: Diary
) -> None:
    """Contract 1.7: the first SIGTERM or SIGINT must stop in order, a second one must exit at once with 1."""
    manager = new_manager(environment, shutdown, aborts, controllers=[diary.controller("slow", slow_stop=3)])
    async with asyncio.TaskGroup() as group:
        running = group.create_task(manager.run())
        await asyncio.sleep(10)
        signal.raise_signal(signal.SIGTERM)
        await settle()
        assert shutdown.requested == "signal SIGTERM"
        assert aborts.codes == []
        await asyncio.sleep(1)
        signal.raise_signal(signal.SIGINT)
        await settle()
        assert aborts.codes == [1]
    assert running.result() == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_error_while_stopping_exits_1(environment: Environment, shutdown: Shutdown, aborts: Aborts) -> None:
    """Contract 1.7: exit code 0 needs that everything stopped without an error."""

    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        yield
        raise AssertionError  # pragma: no cover

    @asynccontextmanager
    async def failing() -> AsyncIterator[None]:
        try:
            yield
        finally:
            raise RetriableError("cannot close")

    assert await run_for(new_manager(environment, shutdown, aborts, servers=[failing()]), 10, shutdown) == 1


async def test_cancelling_the_manager_cancels_everything(
    environment: Environment, shutdown: Shutdown, aborts: Aborts, diary: Diary
) -> None:
    """A cancelled manager passes the cancellation on, and leaves its parts."""
    manager = new_manager(environment, shutdown, aborts, controllers=[diary.controller("lease")])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await manager.run()
    assert diary.lines == ["+lease", "-lease"]


async def test_api_recovery_reaches_all_controllers(
    environment: Environment, shutdown: Shutdown, aborts: Aborts, cluster: Cluster, api: FakeApi
) -> None:
    """When informers are in sync again after an outage, a key that waits for an API error runs within 5 s."""
    moments: list[float] = []
    client = cluster.client

    class Reconciler:
        async def reconcile(self, _request: Request) -> Result:
            moments.append(asyncio.get_running_loop().time())
            await client.get(NODES, "a")
            return Result()

    api.put(NODES, {"metadata": {"name": "a"}})
    cluster.cache.informer(NODES)
    controller = Controller(name="reader", reconciler=Reconciler(), sources=[StartupSource([A])])
    manager = new_manager(environment, shutdown, aborts, clusters=[cluster], controllers=[controller])
    async with asyncio.TaskGroup() as group:
        running = group.create_task(manager.run())
        api.go_away()
        await asyncio.sleep(3000)
        attempts = len(moments)
        assert attempts < 25
        api.heal()
        await asyncio.sleep(66)
        assert len(moments) == attempts + 1
        shutdown.request("end of the test")
    assert running.result() == 0
