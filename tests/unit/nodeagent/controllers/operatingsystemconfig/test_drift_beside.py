"""Drift is seen and put right although the OSC does not count as applied: something of it fails or is waited for, or it is refused."""

import asyncio
import json
from collections.abc import Callable, Iterable

import pytest

from agents.core.files import FileError
from nodeagent.host.consistency import Finding
from nodeagent.host.extracted_files import ExtractedFiles
from osc.types import File
from tests.support.drifting import restarted_since, touch
from tests.support.in_place import KUBELET, drain, metadata, publish, run_os
from tests.support.osc_agent import SLEEP, OscAgent, containerd, from_secret, inline

FILES = [inline("/etc/a", "right", 0o644), inline("/etc/b", "right", 0o644)]
UNITS = [{"name": "a.service", "content": SLEEP}]
REGISTRY = {"upstream": "docker.io", "hosts": [{"url": "https://mirror"}]}


async def let_drift(node: OscAgent, seconds: float) -> None:
    """Change a file and a unit file, and wait."""
    (node.root / "etc/a").write_text("wrong")
    (node.root / "etc/systemd/system/a.service").write_text("[Service]\nExecStart=/bin/true\n")
    await asyncio.sleep(seconds)


def is_right(node: OscAgent) -> bool:
    """Tell whether both are as the OSC wants them."""
    return (node.read("/etc/a"), node.read("/etc/systemd/system/a.service")) == ("right", SLEEP)


@pytest.mark.parametrize("blind", [False, True], ids=["inotify", "sync period"])
async def test_drift_beside_an_item_that_fails(node: OscAgent, *, blind: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 9 W14, ours: what this OSC has brought is looked after; what it could not bring is no drift."""
    node.host.write_unit("containerd.service", SLEEP)
    if blind:
        monkeypatch.setattr(node.drift, "suspect", lambda _path: None)
    node.publish(
        files=[*FILES, from_secret("/etc/s", "missing")], units=UNITS, criConfig=containerd(registries=[REGISTRY])
    )
    async with node.controlling():
        await asyncio.sleep(1200)
        assert node.drifted == []
        await let_drift(node, 1300 if blind else 2)
        assert is_right(node)
        assert {reason for reason, _action in node.drifted} == {"FileMismatch", "UnitMismatch"}
        assert node.status_document()["phase"] == "failing"
        node.put_secret("missing", "key", "x")
        await asyncio.sleep(1300)
        assert (node.read("/etc/s"), node.status_document()["phase"]) == ("x", "applied")


async def test_a_look_that_failed_is_repeated(node: OscAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 9 W14, ours: a disk that could not be looked at once: with the next pass, not a sync period later."""
    node.publish(files=[*FILES, from_secret("/etc/s", "missing")], units=UNITS)
    look, failing = ExtractedFiles.changed, [True]

    def fail_once(self: ExtractedFiles, files: Iterable[File]) -> Iterable[Finding]:
        if failing and failing.pop():
            raise FileError("file not read", node.root, OSError(5, "Input/output error"))
        return look(self, files)

    async with node.controlling():
        await asyncio.sleep(10)
        monkeypatch.setattr(ExtractedFiles, "changed", fail_once)
        await let_drift(node, 60)
        assert is_right(node)
        assert not failing


@pytest.mark.parametrize("blind", [False, True], ids=["inotify", "sync period"])
async def test_drift_beside_an_osc_that_is_refused(
    node: OscAgent, *, blind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 9 W14, ours: the last OSC that was applied is kept up; the refusal is still what the status says."""
    if blind:
        monkeypatch.setattr(node.drift, "suspect", lambda _path: None)
    checksum = node.publish(files=FILES, units=UNITS)
    async with node.controlling():
        await asyncio.sleep(10)
        node.publish_bytes(b"kind: [")
        await asyncio.sleep(700)
        await let_drift(node, 700 if blind else 2)
        assert is_right(node)
        assert (node.applied(), node.status_document()["phase"]) == (checksum, "failing")
        assert len(node.events("OSCInvalid")) == 1
        last = node.publish(files=[inline("/etc/a", "new", 0o644)])
        await asyncio.sleep(60)
        assert (node.applied(), node.read("/etc/a"), node.read("/etc/b")) == (last, "new", None)


MANIFEST = "/etc/kubernetes/manifests/etcd.yaml"
POD = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "etcd"}})
DEAD = {"upstream": "dead", "hosts": [{"url": "http://127.0.0.1:1"}], "readinessProbe": True}


def wait_for_a_pod(agent: OscAgent) -> None:
    """Let a static pod not be there."""
    agent.register_node()
    agent.publish(files=[inline(MANIFEST, POD)])


def wait_for_a_node(agent: OscAgent) -> None:
    """Let the kubelet not have registered the Node."""
    agent.publish(files=[inline(MANIFEST, POD)])


def wait_for_a_mirror(agent: OscAgent) -> None:
    """Let a registry not answer."""
    agent.register_node()
    agent.run_pod("etcd")
    agent.host.write_unit("containerd.service", SLEEP)
    agent.publish(files=[inline(MANIFEST, POD)], criConfig=containerd(registries=[DEAD]))


@pytest.mark.parametrize("blind", [False, True], ids=["inotify", "sync period"])
@pytest.mark.parametrize("started_anew", [False, True])
@pytest.mark.parametrize("wait", [wait_for_a_pod, wait_for_a_node, wait_for_a_mirror])
async def test_drift_while_something_is_waited_for(
    agent: OscAgent,
    *,
    wait: Callable[[OscAgent], None],
    started_anew: bool,
    blind: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Contract 9 W14, ours: what is waited for may never come without what is gone, as a static pod without its manifest."""
    wait(agent)
    async with agent.connected():
        await agent.reconcile()
    if started_anew:
        agent.start_process()
    if blind:
        monkeypatch.setattr(agent.drift, "suspect", lambda _path: None)
    async with agent.controlling():
        await asyncio.sleep(20)
        (agent.root / MANIFEST.lstrip("/")).unlink()
        await asyncio.sleep(700 if blind else 2)
        assert agent.read(MANIFEST) == POD
        assert agent.drifted == [("FileMissing", "put right")]


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("blind", [False, True], ids=["inotify", "sync period"])
async def test_drift_while_an_update_waits_for_its_drain(
    node: OscAgent, *, blind: bool, serial: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 9 W14, ours: a person may have to begin it, days later; the OSC before is kept up, and of the update nothing changes."""
    if blind:
        monkeypatch.setattr(node.drift, "suspect", lambda _path: None)
    run_os(node, "1.0.0")
    node.put_secret("s", "key", "x")
    secret = from_secret("/etc/s", "s")
    before = publish(node, more=[secret, inline("/etc/motd", "old", 0o644)], serial=serial)
    async with node.controlling():
        await asyncio.sleep(10)
        later = publish(
            node, more=[secret, inline("/etc/motd", "new", 0o644)], serial=serial, cpuManagerPolicy="static"
        )
        await asyncio.sleep(700)
        node.host.jobs.clear()
        touch(node, "/etc/motd", "wrong")
        touch(node, KUBELET, "wrong")
        restarted_since(node, seconds=600, name="kubelet.service")
        node.put_secret("s", "key", "y")
        await asyncio.sleep(700 if blind else 2)
        assert (node.read("/etc/motd"), node.read(KUBELET)) == ("old", "{}")
        assert node.host.jobs == [("restart", "kubelet.service")]
        assert sorted(node.drifted) == [("FileMismatch", "put right")] * 2
        await asyncio.sleep(700)
        assert node.read("/etc/s") == "y"
        assert (node.applied(), node.status_document()["phase"]) == (before, "waitingForDrain")
        drain(node)
        await asyncio.sleep(1)
        assert (node.applied(), node.read("/etc/motd"), metadata(node)[0]) == (later, "new", "successful")
        assert "static" in (node.read(KUBELET) or "")
