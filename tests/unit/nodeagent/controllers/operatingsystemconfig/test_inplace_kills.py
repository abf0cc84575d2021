"""Updates in place whose agent is killed at each call that changes something: the next process brings them to the same end.

The sweeps of `make chaos` kill the agent in applies; what comes after files and units, between drain and result, is swept here, in one
process: a call that changes a file, systemd, a credential or the API server raises instead, and so does all that a dying process would
still do.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from agents.core.errors import AgentError
from agents.kube.models import PODS
from nodeagent.controllers.operatingsystemconfig.inplace import RolledBack, UpdateGivenUp, WaitingForReboot
from tests.support.fake_systemd import FakeSystemd
from tests.support.in_place import (
    KUBELET,
    ROTATED,
    drain,
    give_kubelet_credentials,
    metadata,
    publish,
    run_os,
)
from tests.support.killed_agent import Deadly, Killed, deadly
from tests.support.osc_agent import OscAgent

PASSES = 20

Look = Callable[[OscAgent, str], None]
"""Asserts how it ended; the text says where the agent died."""

Then = Callable[[OscAgent, str, str], Awaitable[None]]
"""Goes on until the end, with the OSC's checksum and the operating system's version."""


def _prepare(node: OscAgent, *, version: str) -> str:
    """Have everything to be done that an update in place may consist of, on a machine that was drained; returns the checksum."""
    give_kubelet_credentials(node, "old")

    def bootstrap() -> None:
        if not node.paths.kubelet_kubeconfig.exists():
            give_kubelet_credentials(node, "new")

    node.machine.on_restart = bootstrap
    node.run_pod("static")
    drain(node)
    return publish(
        node,
        version=version,
        command=f"echo called >> {node.root}/called",
        rotation={"certificateAuthorities": ROTATED, "serviceAccountKey": ROTATED},
        evictionHard={"memory.available": "5%"},
    )


async def _go_on(node: OscAgent, checksum: str, version: str) -> None:
    """Do what workqueue, systemd and machine would, until the OSC is applied."""
    for _ in range(PASSES):
        try:
            await node.reconcile()
        except WaitingForReboot:
            run_os(node, version)
            node.paths.operating_system_update.unlink()  # it is in /run
            node.start_process()
        except (RolledBack, UpdateGivenUp):
            raise
        except AgentError:
            node.clock.advance(5)
        if node.applied() == checksum:
            return
    raise AssertionError(f"not applied: {metadata(node)}, {node.status_document()}")


async def _fail(node: OscAgent, _checksum: str, _version: str) -> None:
    """Do what the workqueue would until the update is said to have failed, because the kubelet does not work with what it got."""
    node.machine.on_restart = lambda: None
    node.machine.kubelet_problem = AgentError("kubelet is not healthy")
    for _ in range(PASSES):
        with suppress(AgentError):
            await node.reconcile()
        if metadata(node)[0] == "failed":
            return
        node.clock.advance(100)
    raise AssertionError(f"not failed: {metadata(node)}, {node.status_document()}")


async def _killed_once(folder: Path, version: str, at: int, then: Then, look: Look) -> Deadly:
    """Apply, die at a call, go on as the next process, and look at the end."""
    host = FakeSystemd(folder)
    await host.start()
    try:
        node = OscAgent(folder, host)
        node.register_node()
        run_os(node, "1.0.0")
        publish(node)
        async with node.connected():
            await node.reconcile()
            checksum = _prepare(node, version=version)
            with deadly(node, at) as death, suppress(Killed, BaseExceptionGroup):
                await then(node, checksum, version)
            await then(node, checksum, version)
    finally:
        await host.stop()
    look(node, f"killed at {len(death.calls)}: {death.calls[-1:]}")
    return death


def _is_updated(node: OscAgent, told: str) -> None:
    assert metadata(node) == ("successful", None, None), told
    assert "5%" in (node.read(KUBELET) or ""), told
    assert node.paths.kubelet_client_certificate.read_text() == "new", told
    assert [path.name for path in node.paths.kubelet.iterdir() if path.name.startswith(".")] == [], told
    assert node.api.stored(PODS) == [], told
    assert node.machine.renewals >= 1, told
    assert node.machine.resyncs >= 1, told
    pending = node.journal.load().pending
    assert pending is None or not pending.unfinished, told


def _is_as_before(node: OscAgent, told: str) -> None:
    assert node.paths.kubelet_client_certificate.read_text() == "old", told
    assert "default-context" in node.paths.kubelet_kubeconfig.read_text(), told
    assert [path.name for path in node.paths.kubelet.iterdir() if path.name.startswith(".")] == [], told
    assert len(node.api.stored(PODS)) == 1, told


@pytest.mark.parametrize("version", ["1.0.0", "2.0"])
@pytest.mark.parametrize("part", range(4))
async def test_an_update_that_is_killed_anywhere_comes_to_its_end(tmp_path: Path, version: str, part: int) -> None:
    """Contract 6.13, every fourth call: files, systemd, kubelet, credentials, Node, pods; with a new operating system and without."""
    await _sweep(tmp_path, version, part, _go_on, _is_updated)


@pytest.mark.parametrize("part", range(2))
async def test_w30_a_rotation_that_fails_and_is_killed_anywhere_is_taken_back(tmp_path: Path, part: int) -> None:
    """Contract 9 W30, every second call: the kubelet has all of its old credentials, whenever the agent died."""
    await _sweep(tmp_path, "1.0.0", part, _fail, _is_as_before, stride=2)


async def _sweep(
    folder: Path,
    version: str,
    part: int,
    then: Then,
    look: Look,
    *,
    stride: int = 4,
) -> None:
    for at in count(1 + part, stride):
        place = folder / str(at)
        place.mkdir()
        death = await _killed_once(place, version, at, then, look)
        if len(death.calls) < at:
            assert at > 20
            break
