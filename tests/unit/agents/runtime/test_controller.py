"""The controller alone decides what happens to a key after a reconcile."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
import structlog

from agents.core.errors import FatalError, RetriableError, TerminalError
from agents.kube.errors import Forbidden, TooManyRequests, Unavailable
from agents.runtime.controller import Controller, Environment, second_cluster_deadline, waits_for_api
from agents.runtime.reconcile import Request, RequeueAfter, Result
from agents.runtime.source import ChannelSource, StartupSource
from tests.support.tasks import running

A = Request("ns", "a")
B = Request("ns", "b")


class Script:
    """A reconciler that plays a list of outcomes, the last one for ever, and notes when it was called for what."""

    def __init__(self, *outcomes: Result | Exception | Callable[[], Awaitable[Result]]) -> None:
        self.outcomes = list(outcomes)
        self.calls: list[tuple[float, Request]] = []

    async def reconcile(self, request: Request) -> Result:
        """Play the next outcome."""
        self.calls.append((asyncio.get_running_loop().time() - 1000, request))
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome if isinstance(outcome, Result) else await outcome()

    @property
    def times(self) -> list[float]:
        """Return when it was called."""
        return [round(moment, 3) for moment, _ in self.calls]


def new_controller(script: Script, *, requests: tuple[Request, ...] = (A,), **options: object) -> Controller:
    """Return a controller that starts with the given keys."""
    return Controller(name="test", reconciler=script, sources=[StartupSource(requests)], **options)  # type: ignore[arg-type]


def metric(environment: Environment, name: str, **labels: str) -> float | None:
    """Return the value of a metric of the controller."""
    return environment.metrics.registry.get_sample_value(name, {"controller": "test", **labels})


async def play(controller: Controller, environment: Environment, seconds: float) -> None:
    """Run a controller for some virtual seconds."""
    async with running(lambda: controller.run(environment)):
        await asyncio.sleep(seconds)


async def test_success_is_not_repeated(environment: Environment) -> None:
    """A plain result leaves the key alone until a source brings it again."""
    script = Script(Result())
    await play(new_controller(script), environment, 3600)
    assert script.calls == [(0, A)]
    assert metric(environment, "controller_runtime_reconcile_total", result="success") == 1
    assert metric(environment, "controller_runtime_reconcile_errors_total") == 0


async def test_requeue_after_brings_the_key_back(environment: Environment) -> None:
    """A result with a time brings the key back after that time, again and again."""
    script = Script(Result(requeue_after=timedelta(seconds=10)))
    await play(new_controller(script), environment, 35)
    assert script.times == [0, 10, 20, 30]
    assert metric(environment, "controller_runtime_reconcile_total", result="requeue_after") == 4


async def test_unknown_exception_backs_off(environment: Environment) -> None:
    """Contract 1.9: an error must bring the key back after 5 ms, 10 ms, 20 ms and so on; success starts over."""
    script = Script(*[ValueError("boom")] * 4, Result())
    with structlog.testing.capture_logs():
        await play(new_controller(script), environment, 100)
    assert script.times == [0, 0.005, 0.015, 0.035, 0.075]
    assert metric(environment, "controller_runtime_reconcile_errors_total") == 4


async def test_success_forgets_failures(environment: Environment) -> None:
    """After a success the next failure waits as short as the first, however many there were before."""
    errors = [RetriableError("no")] * 10
    script = Script(*errors, Result(requeue_after=timedelta(seconds=100)), RetriableError("no"), Result())
    await play(new_controller(script), environment, 200)
    assert round(script.times[-1] - script.times[-2], 3) == 0.005


async def test_backoff_reaches_its_longest(environment: Environment) -> None:
    """Contract 1.9: the back-off must not grow above 1000 s, unless the controller has a shorter one."""
    script = Script(RetriableError("no"))
    await play(new_controller(script), environment, 10_000)
    assert script.times[-1] - script.times[-2] == 1000
    capped = Script(RetriableError("no"))
    await play(new_controller(capped, max_backoff=timedelta(minutes=1)), environment, 10_000)
    assert capped.times[-1] - capped.times[-2] == 60


async def test_retriable_error_with_a_time(environment: Environment) -> None:
    """A time that the error carries replaces the back-off."""
    script = Script(TooManyRequests("slow down", after=timedelta(seconds=7)), Result())
    await play(new_controller(script), environment, 100)
    assert script.times == [0, 7]


async def test_terminal_error_waits_for_new_input(environment: Environment) -> None:
    """Contract 1.9: a terminal error must not be retried until a new event arrives."""
    channel = ChannelSource()
    script = Script(TerminalError("bad input"))
    controller = Controller(name="test", reconciler=script, sources=[channel])
    channel.send(A)
    async with running(lambda: controller.run(environment)):
        await asyncio.sleep(5000)
        assert script.times == [0]
        channel.send(A)
        await asyncio.sleep(5000)
    assert script.times == [0, 5000]
    assert metric(environment, "controller_runtime_terminal_reconcile_errors_total") == 2


async def test_fatal_error_ends_the_controller(environment: Environment) -> None:
    """A fatal error is passed on, so that the process ends."""
    with pytest.raises(ExceptionGroup) as caught:
        await new_controller(Script(FatalError("broken"))).run(environment)
    assert caught.group_contains(FatalError, match="broken")


async def test_deadline_ends_a_reconcile(environment: Environment) -> None:
    """Contract 1.9: a reconcile must end after 3 minutes; it is retried, as any other failure."""

    async def hang() -> Result:
        await asyncio.sleep(100_000)
        return Result()

    script = Script(hang, Result())
    await play(new_controller(script), environment, 1000)
    assert script.times == [0, 180.005]


async def test_own_timeout_is_not_the_deadline(environment: Environment) -> None:
    """A timeout that a reconcile does not handle is an unknown exception and not the controller's deadline."""
    script = Script(TimeoutError("mine"), Result())
    with structlog.testing.capture_logs() as logs:
        await play(new_controller(script), environment, 1)
    assert [type(line["error"]) for line in logs if "error" in line] == [TimeoutError]


async def test_no_deadline(environment: Environment) -> None:
    """Contract 1.9: a controller without deadline (health-check) must be able to take as long as it needs."""

    async def long() -> Result:
        await asyncio.sleep(100_000)
        return Result()

    await play(new_controller(Script(long), deadline=None), environment, 100_001)
    assert metric(environment, "controller_runtime_reconcile_total", result="success") == 1


async def test_concurrency(environment: Environment) -> None:
    """Two workers reconcile two keys at the same time, and never one key twice at the same time."""
    active: list[int] = []

    async def work() -> Result:
        active.append(int(metric(environment, "controller_runtime_active_workers") or 0))
        await asyncio.sleep(10)
        return Result()

    keys = (A, B, Request("ns", "c"))
    await play(new_controller(Script(work), requests=keys, concurrency=2), environment, 100)
    assert max(active) == 2
    assert metric(environment, "controller_runtime_active_workers") == 0


async def test_workers_wait_for_sources(environment: Environment) -> None:
    """No key is reconciled before every source is ready."""

    class Slow(StartupSource):
        async def wait_ready(self) -> None:
            await asyncio.sleep(50)

    script = Script(Result())
    controller = Controller(name="test", reconciler=script, sources=[StartupSource([A]), Slow([B])])
    await play(controller, environment, 100)
    assert script.calls == [(50, A), (50, B)]


async def test_log_fields(environment: Environment) -> None:
    """Each line inside a reconcile carries controller, namespace, name and a new reconcileID."""
    log = structlog.get_logger()

    async def speak() -> Result:
        log.info("Inside", **structlog.contextvars.get_contextvars())
        return Result(requeue_after=timedelta(seconds=1))

    with structlog.testing.capture_logs() as logs:
        await play(new_controller(Script(speak)), environment, 1.5)
    lines = [line for line in logs if line["event"] == "Inside"]
    assert [(line["controller"], line["namespace"], line["name"]) for line in lines] == [("test", "ns", "a")] * 2
    assert len({line["reconcileID"] for line in lines}) == 2


@pytest.mark.parametrize(("error", "traceback"), [(ValueError("boom"), True), (RetriableError("no", unit="x"), False)])
async def test_failure_is_logged_once(environment: Environment, error: Exception, traceback: bool) -> None:
    """A failure gives one line at level error, with a traceback only if its class is none of ours."""
    with structlog.testing.capture_logs() as logs:
        await play(new_controller(Script(error, Result())), environment, 1)
    [line] = [line for line in logs if line["log_level"] == "error"]
    assert (line["event"], line["error"], line["attempt"], line["requeueAfterSeconds"]) == (
        "Reconcile failed", error, 1, 0.005,
    )  # fmt: skip
    assert bool(line["exc_info"]) is traceback


async def test_api_recovery_shortens_the_wait(environment: Environment) -> None:
    """A key that waits because of the API server runs within 5 s once that is back; another one waits on."""
    api_error = Script(Unavailable("away"), Result())
    own_error = Script(RetriableError("own"), Result())
    backoff = timedelta(seconds=500)
    waiting = new_controller(api_error, base_backoff=backoff)
    other = new_controller(own_error, base_backoff=backoff)
    async with running(lambda: waiting.run(environment), lambda: other.run(environment)):
        await asyncio.sleep(100)
        waiting.retry_api_errors()
        other.retry_api_errors()
        await asyncio.sleep(5)
        assert len(api_error.calls) == 2
        assert len(own_error.calls) == 1


def test_api_recovery_before_the_start_is_harmless() -> None:
    """A controller that does not run yet has no keys that wait."""
    new_controller(Script(Result())).retry_api_errors()


def test_waits_for_api_looks_at_causes() -> None:
    """An error that was raised from an API error waits for the API server, too."""
    error = RetriableError("lease not renewed")
    error.__cause__ = Forbidden("no", status=403)
    assert waits_for_api(error)
    assert not waits_for_api(RetriableError("own"))


async def test_forbidden_is_retried_with_a_growing_wait(environment: Environment) -> None:
    """Contract 4.8: 403 must be treated as transient; it is tried again, less and less often, at most as the back-off says."""
    script = Script(Forbidden("no", status=403))
    await play(new_controller(script), environment, 3600)
    assert 18 <= len(script.calls) <= 22
    assert script.times[-1] - script.times[-2] == 1000


async def test_stop_drops_what_waits(environment: Environment) -> None:
    """A cancelled controller stops its sources; a later start begins with an empty queue."""
    channel = ChannelSource()
    script = Script(Result(requeue_after=timedelta(seconds=1)))
    controller = Controller(name="test", reconciler=script, sources=[channel])
    channel.send(A)
    await play(controller, environment, 0.5)
    await asyncio.sleep(100)
    assert script.times == [0]
    await play(controller, environment, 10)
    assert script.times == [0]


async def test_requeue_after_is_no_failure(environment: Environment) -> None:
    """Contract controllers 2.1: an error that carries requeueAfter is a delayed requeue, logged, and counts as no error."""
    script = Script(RequeueAfter("shoots are left", after=timedelta(minutes=1), shoots=3))
    with structlog.testing.capture_logs() as logs:
        await play(new_controller(script), environment, 130)
    assert script.times == [0, 60, 120]
    assert metric(environment, "controller_runtime_reconcile_errors_total") == 0
    assert metric(environment, "controller_runtime_reconcile_total", result="requeue_after") == 3
    line = next(line for line in logs if line["event"] == "Reconcile has to wait")
    assert (line["log_level"], str(line["error"])) == ("info", "shoots are left (shoots=3)")


@pytest.mark.parametrize(("minutes", "seconds"), [(2, 60), (3, 90), (60, 90)])
def test_second_cluster_deadline(minutes: int, seconds: int) -> None:
    """Contract controllers 2.1: calls to the second cluster may take half of the deadline, of 3 minutes at most."""
    assert second_cluster_deadline(timedelta(minutes=minutes)) == timedelta(seconds=seconds)
