"""A registry that stalls, and a disk that is full, hold nothing back but themselves."""

import asyncio
import errno
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest

from agents.core.errors import AgentError, RetriableError
from agents.core.files import FileError, write_atomic
from nodeagent.controllers.operatingsystemconfig import controller
from nodeagent.controllers.operatingsystemconfig.reporter import ApplyFailed
from nodeagent.host.image_extractor import PULL_DEADLINE, Extraction
from tests.support.osc_agent import SLEEP, OscAgent, containerd, from_image, from_secret, inline

OWN = "gardener-node-agent.service"
GOOD, STALLED = "good.example/k@sha256:2", "stalled.example/x@sha256:1"


@pytest.fixture
def stalled(node: OscAgent, monkeypatch: pytest.MonkeyPatch) -> OscAgent:
    """A node with containerd, one registry that answers after 5 s, and one that never does."""
    node.host.write_unit("containerd.service", SLEEP)
    extract = node.images.extract

    async def slow(image: str, wanted: Sequence[Extraction]) -> Mapping[str, bool | AgentError]:
        if image != STALLED:
            await asyncio.sleep(5)
            return await extract(image, wanted)
        await asyncio.sleep(PULL_DEADLINE.total_seconds())
        return {item.target: RetriableError("image not pulled", image=image) for item in wanted}

    node.images.images[GOOD] = {"/k": b"program"}
    monkeypatch.setattr(node.images, "extract", slow)
    return node


async def test_what_another_image_brought_is_used_at_once(stalled: OscAgent) -> None:
    """Contract 6.16, ours: the kubelet is started when its program is there, not when all programs are."""
    kubelet = {"name": "kubelet.service", "content": SLEEP, "filePaths": ["/opt/bin/kubelet"]}
    stalled.publish(
        files=[from_image("/opt/bin/kubelet", GOOD, "/k"), from_image("/opt/bin/x", STALLED, "/x")], units=[kubelet]
    )
    async with stalled.controlling():
        await asyncio.sleep(4)
        assert stalled.host.jobs == []
        await asyncio.sleep(4)
        assert stalled.host.jobs == [("restart", "kubelet.service")]


async def test_the_kubelet_is_not_started_right_before_containerd_is_restarted(stalled: OscAgent) -> None:
    """Contract 6.14, ours: both wait for all images, and are asked for together, so that systemd has them in their order."""
    kubelet = {"name": "kubelet.service", "content": SLEEP, "filePaths": ["/opt/bin/kubelet"]}
    files = [from_image("/opt/bin/kubelet", GOOD, "/k"), from_image("/opt/bin/x", STALLED, "/x")]
    stalled.publish(files=files, units=[kubelet], criConfig=containerd())
    async with stalled.controlling():
        await asyncio.sleep(60)
        assert stalled.host.jobs == []
        await asyncio.sleep(PULL_DEADLINE.total_seconds())
        assert sorted(stalled.host.jobs) == [("restart", "containerd.service"), ("restart", "kubelet.service")]


async def test_the_own_update_does_not_wait_for_another_image(stalled: OscAgent) -> None:
    """Contract 6.8, ours: the next version takes over as soon as its program is there."""
    own = {"name": OWN, "content": SLEEP, "filePaths": ["/opt/bin/gardener-node-agent"]}
    files = [from_image("/opt/bin/gardener-node-agent", GOOD, "/k"), from_image("/opt/bin/x", STALLED, "/x")]
    stalled.publish(files=files, units=[own])
    async with stalled.controlling():
        await asyncio.sleep(8)
        assert stalled.restart_reason() is not None


def publish_own(node: OscAgent, image: str) -> None:
    """Publish an OSC that brings the agent itself out of an image."""
    own = {"name": OWN, "content": SLEEP, "filePaths": ["/opt/bin/gardener-node-agent"]}
    node.publish(files=[from_image("/opt/bin/gardener-node-agent", image, "/k")], units=[own])


@pytest.fixture
async def updating(node: OscAgent) -> AsyncIterator[OscAgent]:
    """A connected node whose agent came out of an image, and that is to get another one."""
    node.images.images |= {"own@sha256:1": {"/k": b"1"}, "own@sha256:2": {"/k": b"2"}}
    async with node.connected():
        publish_own(node, "own@sha256:1")
        await node.reconcile()
        node.start_process()
        node.identity.start()
        await node.reconcile()
        assert (node.restart_reason(), node.applied() is not None) == (None, True)
        publish_own(node, "own@sha256:2")
        yield node


async def test_an_own_program_that_arrived_when_the_time_was_over_is_run(
    updating: OscAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 1.8: the rename was made, its answer was lost, and the next attempt finds equal bytes."""
    extract = updating.images.extract

    async def late(image: str, wanted: Sequence[Extraction]) -> Mapping[str, bool | AgentError]:
        results = await extract(image, wanted)
        await asyncio.sleep(10)
        return results

    with monkeypatch.context() as patched:
        patched.setattr(controller, "APPLY_SECONDS", 5.0)
        patched.setattr(updating.images, "extract", late)
        with pytest.raises(ApplyFailed):
            await updating.reconcile()
    assert (updating.read("/opt/bin/gardener-node-agent"), updating.restart_reason()) == ("2", None)
    await updating.reconcile()
    assert updating.restart_reason() is not None


async def test_an_own_program_whose_record_could_not_be_written_is_run(
    updating: OscAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 1.8: the disk was full right after the rename; the next attempt finds equal bytes."""

    def full(*_arguments: object) -> None:
        raise FileError("file not written", updating.paths.extracted, OSError(errno.ENOSPC, "full"))

    with monkeypatch.context() as patched:
        patched.setattr(updating.extracted, "remember", full)
        with pytest.raises(ApplyFailed):
            await updating.reconcile()
    assert (updating.read("/opt/bin/gardener-node-agent"), updating.restart_reason()) == ("2", None)
    await updating.reconcile()
    assert updating.restart_reason() is not None


async def test_an_own_program_that_did_not_arrive_is_no_reason_to_restart(updating: OscAgent) -> None:
    """Contract 1.8: tried, and not replaced: what runs is what is there."""
    program = updating.images.images.pop("own@sha256:2")
    with pytest.raises(ApplyFailed):
        await updating.reconcile()
    assert updating.restart_reason() is None
    updating.images.images["own@sha256:2"] = {**program, "/k": b"1"}
    await updating.reconcile()
    assert (updating.restart_reason(), updating.status_document()["phase"]) == (None, "applied")


async def test_a_pull_without_end_is_said_and_containerd_gets_its_restart(stalled: OscAgent) -> None:
    """Contract 6.14, 6.16: the pull ends before the pass does, so its cause is told, with all others of that pass."""
    stalled.publish(
        files=[from_image("/opt/bin/x", STALLED, "/x"), from_secret("/etc/s", "missing")], criConfig=containerd()
    )
    async with stalled.controlling():
        await asyncio.sleep(PULL_DEADLINE.total_seconds() + 60)
        assert ("restart", "containerd.service") in stalled.host.jobs
        note = stalled.events("OSCFailed")[0]["note"]
        assert ("file /opt/bin/x: image not pulled" in note, "file /etc/s: " in note) == (True, True)
        names = {item["name"] for item in stalled.status_document()["items"]}
        assert names == {"file /opt/bin/x", "file /etc/s"}


async def test_a_pass_that_takes_too_long_tells_what_failed(stalled: OscAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 6.10, ours: the time is over, and what is known by then is not lost."""

    async def never(_image: str, _wanted: Sequence[Extraction]) -> Mapping[str, bool | AgentError]:
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(stalled.images, "extract", never)
    stalled.publish(files=[from_image("/opt/bin/x", STALLED, "/x"), from_secret("/etc/s", "missing")])
    async with stalled.controlling():
        await asyncio.sleep(310)
        note = stalled.events("OSCFailed")[0]["note"]
        assert ("the whole pass: apply took too long" in note, "file /etc/s: " in note) == (True, True)


async def test_a_journal_that_cannot_be_written_is_said(node: OscAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 6.4, 6.10: a full disk in the middle of a pass is in event and status, and the pass is finished later."""
    writes: list[Path] = []

    def write(path: Path, content: bytes, *, mode: int, sync: bool = True) -> bool:
        writes.append(path)
        if len(writes) in range(2, 6):
            raise FileError("file not written", path, OSError(errno.ENOSPC, "No space left on device"))
        return write_atomic(path, content, mode=mode, sync=sync)

    monkeypatch.setattr(node.journal, "_write", write)
    checksum = node.publish(
        files=[*(inline(f"/etc/{index}", "x") for index in range(50)), from_secret("/etc/s", "missing")]
    )
    async with node.controlling():
        await asyncio.sleep(1)
        note = node.events("OSCFailed")[0]["note"]
        assert ("the whole pass: file not written" in note, "No space left" in note) == (True, True)
        assert node.status_document()["phase"] == "failing"
        node.put_secret("missing", "key", "x")
        await asyncio.sleep(60)
        assert node.applied() == checksum
