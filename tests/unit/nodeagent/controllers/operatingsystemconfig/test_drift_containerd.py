"""containerd's configuration that somebody else changed, as the drift look sees it."""

from collections.abc import AsyncIterator, Collection

import pytest

from agents.core.errors import RetriableError
from osc.diff import Dirty
from osc.merge import Effective
from tests.support.drifting import restarted_since
from tests.support.osc_agent import SLEEP, OscAgent, containerd, inline

CONFIG = "/etc/containerd/config.toml"
UNIT = "containerd.service"
EMPTIED = "version = 2\n"


@pytest.fixture
async def runtime(node: OscAgent) -> AsyncIterator[OscAgent]:
    """A connected node whose containerd is configured."""
    node.host.write_unit(UNIT, SLEEP)
    node.publish(files=[inline("/etc/a", "one", 0o644)], criConfig=containerd())
    async with node.connected():
        await node.reconcile()
        node.host.jobs.clear()
        yield node


def write(node: OscAgent, text: str) -> None:
    """Do what somebody else does."""
    (node.root / CONFIG.lstrip("/")).write_text(text)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("seconds", [-600, 600])
async def test_the_configuration_is_put_right(runtime: OscAgent, seconds: int, missing: bool) -> None:
    """Contract 9 W14, W16: emptied or removed: one event; containerd is restarted only if it was started with that."""
    if missing:
        (runtime.root / CONFIG.lstrip("/")).unlink()
    else:
        write(runtime, EMPTIED)
    restarted_since(runtime, seconds=seconds, name=UNIT)
    for _ in range(2):
        await runtime.reconcile()
    assert 'sandbox_image = "pause"' in (runtime.read(CONFIG) or "")
    assert runtime.drifted == [("ContainerdConfigMismatch", "put right")]
    assert runtime.host.jobs == ([("restart", UNIT)] if seconds > 0 else [])
    assert runtime.budget.count(UNIT) == len(runtime.host.jobs)


async def test_what_others_configure_is_no_drift(runtime: OscAgent) -> None:
    """Contract 9 W14: keys that are not the OSC's."""
    write(runtime, (runtime.read(CONFIG) or "") + "\n[debug]\nlevel = 'debug'\n")
    await runtime.reconcile()
    assert (runtime.drifted, runtime.host.jobs) == ([], [])


async def test_restarts_and_repairs_are_limited(runtime: OscAgent) -> None:
    """Contract 9 W14: three restarts and six repairs within an hour, then it is left; also if something else is put right."""
    for _ in range(8):
        write(runtime, EMPTIED)
        restarted_since(runtime, seconds=600, name=UNIT)
        await runtime.reconcile()
    assert runtime.host.jobs == [("restart", UNIT)] * 3
    assert runtime.read(CONFIG) == EMPTIED
    assert [action for _reason, action in runtime.drifted].count("put right") == 6
    assert len(runtime.drifted) == 7
    (runtime.root / "etc/a").write_text("other")
    await runtime.reconcile()
    assert runtime.read("/etc/a") == "one"
    assert (runtime.drifted[-1], runtime.read(CONFIG)) == (("FileMismatch", "put right"), EMPTIED)
    assert runtime.host.jobs == [("restart", UNIT)] * 3


@pytest.fixture
async def waiting(node: OscAgent) -> AsyncIterator[OscAgent]:
    """A connected node whose containerd is configured, and that waits for a mirror: it looks at the OSC every 5 s."""
    node.host.write_unit(UNIT, SLEEP)
    mirror = {"upstream": "dead", "hosts": [{"url": "http://127.0.0.1:1"}], "readinessProbe": True}
    node.publish(criConfig=containerd(registries=[mirror]))
    async with node.connected():
        await node.reconcile()
        node.host.jobs.clear()
        yield node


async def test_restarts_are_limited_while_a_mirror_is_waited_for(waiting: OscAgent) -> None:
    """Contract 9 W14: the passes of an apply that has not ended are no way around the limits, nor around the sync period."""
    for _ in range(5):
        write(waiting, EMPTIED)
        restarted_since(waiting, seconds=600, name=UNIT)
        await waiting.reconcile()
        assert waiting.read(CONFIG) == EMPTIED
        waiting.clock.advance(550)
        await waiting.reconcile()
        waiting.clock.advance(60)
        await waiting.reconcile()
    assert waiting.host.jobs == [("restart", UNIT)] * 3


async def test_report_only(runtime: OscAgent) -> None:
    """Contract 9 W14: the option `report`: one event, nothing is changed."""
    runtime.repairs_drift = False
    runtime.start_process()
    runtime.identity.start()
    write(runtime, EMPTIED)
    for _ in range(2):
        await runtime.reconcile()
    assert runtime.read(CONFIG) == EMPTIED
    assert runtime.drifted == [("ContainerdConfigMismatch", "only reported")]


async def test_report_only_while_a_mirror_is_waited_for(waiting: OscAgent) -> None:
    """Contract 9 W14: as for an OSC that is applied."""
    waiting.repairs_drift = False
    waiting.start_process()
    waiting.identity.start()
    write(waiting, EMPTIED)
    for _ in range(3):
        waiting.clock.advance(700)
        await waiting.reconcile()
    assert waiting.read(CONFIG) == EMPTIED
    assert waiting.drifted == [("ContainerdConfigMismatch", "only reported")]


async def test_a_containerd_that_does_not_answer_is_no_drift(runtime: OscAgent) -> None:
    """Contract 9 W14: what the file should say depends on its version; as soon as it answers, it is looked at."""
    runtime.containerd.error = RetriableError("containerd does not listen")
    write(runtime, EMPTIED)
    await runtime.reconcile()
    assert (runtime.drifted, runtime.read(CONFIG)) == ([], EMPTIED)
    runtime.containerd.error = None
    await runtime.reconcile()
    assert runtime.drifted == [("ContainerdConfigMismatch", "put right")]


@pytest.mark.parametrize("directory", [False, True])
async def test_what_cannot_be_patched_is_said_once(runtime: OscAgent, directory: bool) -> None:
    """Contract 9 W14, 6.14: whoever wrote it has to mend it; the OSC that is applied does not fail for it."""
    path = runtime.root / CONFIG.lstrip("/")
    if directory:
        path.unlink()
        path.mkdir()
    else:
        write(runtime, "version = [")
    for _ in range(3):
        await runtime.reconcile()
    assert runtime.drifted == [("ContainerdConfigBroken", "only reported")]
    assert runtime.applied() is not None


async def test_w15_numbers_that_another_agent_wrote_as_floats_become_integers(node: OscAgent) -> None:
    """Contract 9 W15, 6.14: Gardener's agent leaves them behind, also deep in a list; ours were equal to them."""
    values = {"stats_collect_period": 10, "streams": [{"port": 7}], "drain": True, "share": 0.5}
    plugin = {"path": ["io.containerd.grpc.v1.cri"], "values": values}
    node.host.write_unit(UNIT, SLEEP)
    checksum = node.publish(criConfig=containerd(plugins=[plugin]))
    async with node.connected():
        await node.reconcile()
        right = node.read(CONFIG) or ""
        for number in (" 10\n", "port = 7 "):
            assert number in right
            write(node, right.replace(number, f"{number.rstrip()}.0{number[-1]}"))
            node.host.jobs.clear()
            restarted_since(node, seconds=600, name=UNIT)
            await node.reconcile()
            assert (node.read(CONFIG), node.host.jobs) == (right, [("restart", UNIT)])
        node.host.jobs.clear()
        await node.reconcile()
    assert (node.applied(), node.host.jobs) == (checksum, [])


async def test_what_was_put_right_by_others_meanwhile_is_forgotten(
    runtime: OscAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 9 W14, W44: drift that is gone before its repair leaves no pass behind that applies everything again and again."""
    good = runtime.read(CONFIG) or ""
    write(runtime, EMPTIED)
    look = runtime.drift.look

    async def look_and_mend(applied: Effective, **more: Collection[str]) -> Dirty:
        dirty = await look(applied, **more)
        write(runtime, good)
        return dirty

    with monkeypatch.context() as others:
        others.setattr(runtime.drift, "look", look_and_mend)
        await runtime.reconcile()
    patches = len(runtime.api.requests("PATCH"))
    cleaned = runtime.images.cleaned
    for _ in range(3):
        await runtime.reconcile()
    assert len(runtime.api.requests("PATCH")) == patches
    assert runtime.images.cleaned == cleaned + 3


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_repair_that_failed_at_first_restarts_no_more_than_it_was_to(
    runtime: OscAgent, restarted: bool, started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 9 W14: containerd runs with what was right: the second attempt, also of another process, restarts it only if it was started meanwhile."""
    write(runtime, EMPTIED)
    restarted_since(runtime, seconds=-600, name=UNIT)
    look = runtime.drift.look

    async def look_and_fail(applied: Effective, **more: Collection[str]) -> Dirty:
        dirty = await look(applied, **more)
        runtime.containerd.error = RetriableError("no answer")
        return dirty

    with monkeypatch.context() as failing:
        failing.setattr(runtime.drift, "look", look_and_fail)
        with pytest.raises(Exception, match="items could not be applied"):
            await runtime.reconcile()
    runtime.containerd.error = None
    if restarted:
        runtime.start_process()
        runtime.identity.start()
    if started:
        restarted_since(runtime, seconds=600, name=UNIT)
    await runtime.reconcile()
    assert 'sandbox_image = "pause"' in (runtime.read(CONFIG) or "")
    assert runtime.host.jobs == ([("restart", UNIT)] if started else [])
