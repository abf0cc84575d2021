"""containerd's configuration that somebody else changed, as the drift look sees it."""

from collections.abc import AsyncIterator

import pytest

from agents.core.errors import RetriableError
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
    assert runtime.drifted[-1] == ("ContainerdConfigMismatch", "put right")
    assert runtime.host.jobs == [("restart", UNIT)] * 3


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
