"""A registry that stalls, and a disk that is full, hold nothing back but themselves."""

import asyncio
import errno
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from agents.core.errors import AgentError, RetriableError
from agents.core.files import FileError, write_atomic
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
