"""containerd's configuration, registries and files out of images, as one pass applies them."""

import asyncio
import shutil
import threading
import tomllib
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock

import pytest

from agents.core.errors import RetriableError
from nodeagent.controllers.operatingsystemconfig.containerd import RegistryNotReady
from nodeagent.controllers.operatingsystemconfig.reporter import ApplyFailed
from osc.plan import ExtractFile, Step
from tests.support.osc_agent import SLEEP, OscAgent, containerd, from_image, from_secret, inline

CONFIG = "/etc/containerd/config.toml"
IMAGE = "registry.local/kubelet@sha256:1"
DEAD = {"url": "http://127.0.0.1:1"}


def hosts(upstream: str) -> str:
    """Return the path of a registry's file."""
    return f"/etc/containerd/certs.d/{upstream}/hosts.toml"


@pytest.fixture
def runtime(node: OscAgent) -> OscAgent:
    """A node whose operating system has containerd."""
    node.host.write_unit("containerd.service", SLEEP)
    return node


async def test_containerd_is_configured_and_restarted_once(runtime: OscAgent) -> None:
    """Contract 6.14: from containerd's default; one restart, also with the drop-in; the next OSC restarts nothing."""
    runtime.publish(criConfig=containerd())
    async with runtime.connected():
        await runtime.reconcile()
        config = tomllib.loads(runtime.read(CONFIG) or "")
        assert config["root"] == "/var/lib/containerd"
        assert config["plugins"]["io.containerd.grpc.v1.cri"]["sandbox_image"] == "pause"
        assert runtime.host.jobs.count(("restart", "containerd.service")) == 1
        assert "containerruntimes" in (
            runtime.read("/etc/systemd/system/containerd.service.d/30-env_config.conf") or ""
        )
        runtime.publish(files=[inline("/a", "1")], criConfig=containerd())
        await runtime.reconcile()
        assert runtime.host.jobs.count(("restart", "containerd.service")) == 1


async def test_w16_an_unchanged_configuration_is_neither_written_nor_a_reason_to_restart(runtime: OscAgent) -> None:
    """Contract 9 W16: what the file says decides; a change by hand is put right with a restart of containerd alone."""
    runtime.publish(criConfig=containerd())
    async with runtime.connected():
        await runtime.reconcile()
        path = runtime.root / CONFIG.lstrip("/")
        inode = path.stat().st_ino
        runtime.publish(files=[inline("/a", "1")], criConfig=containerd())
        await runtime.reconcile()
        assert path.stat().st_ino == inode
        path.write_text("version = 2\n")
        runtime.publish(
            files=[inline("/a", "2")], criConfig=containerd(), units=[{"name": "a.service", "content": SLEEP}]
        )
        await runtime.reconcile()
        assert "pause" in path.read_text()
        assert runtime.host.jobs.count(("restart", "containerd.service")) == 2


async def test_a_containerd_that_does_not_answer_holds_nothing_else_back(runtime: OscAgent) -> None:
    """Contract 6.14, 9 W32: the item fails alone, with its cause; files and units are applied."""
    runtime.containerd.error = RetriableError("containerd does not listen")
    runtime.publish(files=[inline("/a", "1")], criConfig=containerd(), units=[{"name": "a.service", "content": SLEEP}])
    async with runtime.connected():
        with pytest.raises(ApplyFailed):
            await runtime.reconcile()
        assert runtime.read("/a") == "1"
        assert runtime.host.units["a.service"].active_state == "active"
        (item,) = [item for item in runtime.status_document()["items"] if "containerd" in item["name"]]
        assert item["name"] == "configuration of containerd"
        runtime.containerd.error = None
        await runtime.reconcile()
        assert "pause" in (runtime.read(CONFIG) or "")


async def test_registries_come_and_go(runtime: OscAgent) -> None:
    """Contract 6.15: a file per upstream; the directory goes when the registry leaves the OSC."""
    registries = [{"upstream": "a", "server": "https://a", "hosts": [{"url": "https://m"}]}, {"upstream": "b"}]
    runtime.publish(criConfig=containerd(registries=registries))
    async with runtime.connected():
        await runtime.reconcile()
        assert 'server = "https://a"' in (runtime.read(hosts("a")) or "")
        (runtime.root / "etc/containerd/certs.d/b/ca.crt").write_text("x")
        (runtime.root / "etc/containerd/certs.d/foreign").mkdir()
        checksum = runtime.publish(criConfig=containerd(registries=registries[:1]))
        await runtime.reconcile()
        assert not (runtime.root / "etc/containerd/certs.d/b").exists()
        assert (runtime.root / "etc/containerd/certs.d/foreign").exists()
        assert runtime.applied() == checksum
        assert runtime.host.jobs.count(("restart", "containerd.service")) == 1


async def test_a_registry_leaves_the_files_of_the_osc_in_its_folder(runtime: OscAgent) -> None:
    """Contract 6.15, 6.5: a CA file that stays in the OSC, or a new one, is not removed with the registry that was beside it."""
    folder = "/etc/containerd/certs.d/a"
    registry = {"upstream": "a", "hosts": [{"url": "https://m", "caCerts": ["ca.crt"]}]}
    runtime.publish(files=[inline(f"{folder}/ca.crt", "ca")], criConfig=containerd(registries=[registry]))
    async with runtime.connected():
        await runtime.reconcile()
        files = [inline(f"{folder}/ca.crt", "ca"), inline(f"{folder}/new.crt", "new")]
        checksum = runtime.publish(files=files, criConfig=containerd())
        await runtime.reconcile()
        assert (runtime.read(f"{folder}/ca.crt"), runtime.read(f"{folder}/new.crt")) == ("ca", "new")
        assert (runtime.read(hosts("a")), runtime.applied()) == (None, checksum)


@pytest.mark.parametrize("registry_first", [False, True])
async def test_the_file_of_a_registry_may_become_a_file_of_the_osc(runtime: OscAgent, *, registry_first: bool) -> None:
    """Contract 6.15, 6.5: what leaves under one of the two names is not removed from under the other; also the other way round."""
    registry = {"files": [], "criConfig": containerd(registries=[{"upstream": "a", "server": "https://a"}])}
    file = {"files": [inline(hosts("a"), "file")], "criConfig": containerd()}
    first, second = (registry, file) if registry_first else (file, registry)
    async with runtime.connected():
        runtime.publish(**first)
        await runtime.reconcile()
        checksum = runtime.publish(**second)
        await runtime.reconcile()
        content = runtime.read(hosts("a")) or ""
        assert ("https://a" in content, content == "file") == (not registry_first, registry_first)
        assert runtime.applied() == checksum


async def test_a_registry_that_is_gone_already_can_leave(runtime: OscAgent) -> None:
    """A kill between the removal of its directory and the journal, or an administrator: the next pass has nothing to remove."""
    registry = {"upstream": "docker.io", "hosts": [{"url": "https://mirror"}]}
    runtime.publish(criConfig=containerd(registries=[registry]))
    async with runtime.connected():
        await runtime.reconcile()
        shutil.rmtree((runtime.root / hosts("docker.io").lstrip("/")).parent)
        checksum = runtime.publish(criConfig=containerd())
        await runtime.reconcile()
    assert runtime.applied() == checksum


async def test_a_dead_mirror_holds_nothing_back_but_itself(runtime: OscAgent) -> None:
    """Contract 6.15: probed after the units, not written before it answers, looked at again after 5 s; no other waits."""
    dead = {"upstream": "dead", "hosts": [DEAD], "readinessProbe": True}
    checksum = runtime.publish(
        files=[inline("/a", "1")],
        units=[{"name": "a.service", "content": SLEEP}],
        criConfig=containerd(registries=[dead, {"upstream": "plain"}]),
    )
    async with runtime.connected():
        result = await runtime.reconcile()
        assert result.requeue_after == timedelta(seconds=5)
        assert runtime.read("/a") == "1"
        assert runtime.host.units["a.service"].active_state == "active"
        assert (runtime.read(hosts("dead")), bool(runtime.read(hosts("plain")))) == (None, True)
        assert runtime.applied() != checksum
        (item,) = runtime.status_document()["items"]
        assert item["name"] == "registry dead"
        assert "http://127.0.0.1:1" in item["cause"]


async def test_a_mirror_that_comes_up_is_noticed_beside_an_item_that_fails(
    runtime: OscAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 6.15: the back-off of what fails, up to 1000 s, is not the mirror's."""
    probe = AsyncMock(side_effect=RegistryNotReady("registry is not ready", upstream="docker.io"))
    monkeypatch.setattr(runtime.containerd_files, "probe", probe)
    registry = {"upstream": "docker.io", "hosts": [{"url": "https://mirror"}], "readinessProbe": True}
    runtime.publish(files=[from_secret("/etc/s", "missing")], criConfig=containerd(registries=[registry]))
    async with runtime.controlling():
        await asyncio.sleep(3600)
        assert runtime.read(hosts("docker.io")) is None
        probe.side_effect = None
        await asyncio.sleep(6)
        assert runtime.read(hosts("docker.io")) is not None


async def test_w12_only_new_registries_are_probed(runtime: OscAgent) -> None:
    """Contract 9 W12: a registry that is in use already is not probed again for another OSC, though its mirror is down."""
    alive: dict[str, Any] = {"upstream": "m", "hosts": [], "readinessProbe": True}
    async with runtime.connected(), await asyncio.start_server(_answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        alive["hosts"] = [{"url": f"http://127.0.0.1:{port}"}]
        checksum = runtime.publish(criConfig=containerd(registries=[alive]))
        await runtime.reconcile()
        assert runtime.applied() == checksum
        server.close()
        checksum = runtime.publish(files=[inline("/a", "1")], criConfig=containerd(registries=[alive]))
        await runtime.reconcile()
        assert runtime.applied() == checksum


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()
    writer.close()


async def test_a_changed_registry_file_is_put_right(runtime: OscAgent) -> None:
    """Contract 9 W14: at the sync period, as other files."""
    runtime.publish(criConfig=containerd(registries=[{"upstream": "a"}]))
    async with runtime.connected():
        await runtime.reconcile()
        (runtime.root / hosts("a").lstrip("/")).write_text("x")
        await runtime.reconcile()
        assert "managed by" in (runtime.read(hosts("a")) or "")


async def test_files_come_out_of_images_each_pulled_once(node: OscAgent) -> None:
    """Contract 6.16: two files of one image are one pull; the unit that uses one of them starts after it is there."""
    node.images.images[IMAGE] = {"/kubelet": b"binary", "/kubectl": b"other"}
    unit = {"name": "kubelet.service", "content": SLEEP, "filePaths": ["/opt/bin/kubelet"]}
    files = [from_image("/opt/bin/kubelet", IMAGE, "/kubelet"), from_image("/opt/bin/kubectl", IMAGE, "/kubectl")]
    checksum = node.publish(files=files, units=[unit])
    async with node.connected():
        await node.reconcile()
    assert node.images.pulls == [IMAGE]
    assert (node.read("/opt/bin/kubelet"), node.read("/opt/bin/kubectl")) == ("binary", "other")
    assert node.host.units["kubelet.service"].active_state == "active"
    assert node.applied() == checksum


async def test_an_image_that_takes_long_holds_back_only_what_needs_it(node: OscAgent) -> None:
    """Isolation: while an image is pulled, everything that does not need it is applied, and its unit is not started."""
    node.images.images[IMAGE] = {"/kubelet": b"binary"}
    node.images.blocked = asyncio.Event()
    units: list[dict[str, Any]] = [
        {"name": "kubelet.service", "content": SLEEP, "filePaths": ["/opt/bin/kubelet"]},
        {"name": "other.service", "content": SLEEP},
    ]
    node.publish(files=[from_image("/opt/bin/kubelet", IMAGE, "/kubelet"), inline("/a", "1")], units=units)
    async with node.connected():
        async with asyncio.TaskGroup() as group:
            group.create_task(node.reconcile())
            await node.host.wait_called("RestartUnit")
            assert node.host.jobs == [("restart", "other.service")]
            assert node.read("/a") == "1"
            assert node.host.jobs.count(("restart", "kubelet.service")) == 0
            node.images.blocked.set()
        assert node.host.jobs.count(("restart", "kubelet.service")) == 1


async def test_what_an_extraction_could_not_remove_is_removed_at_rest(node: OscAgent) -> None:
    """Contract 6.16: nothing is left of an extraction; a removal that failed does not wait for the next start or image."""
    node.publish(files=[inline("/a", "1")])
    async with node.connected():
        await node.reconcile()
        assert node.images.cleaned == 0
        await node.reconcile()
    assert node.images.cleaned == 1


async def test_images_that_arrive_together_are_noted_one_after_another(
    node: OscAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is not safe for threads: whoever notes what is done waits for who does so already."""
    other = "registry.local/other@sha256:2"
    node.images.images |= {IMAGE: {"/kubelet": b"binary"}, other: {"/tool": b"tool"}}
    inside, together, done = threading.Lock(), threading.Event(), node.journal.done

    def watched(*steps: Step) -> None:
        if not inside.acquire(blocking=False):
            together.set()
            return done(*steps)
        try:
            if any(isinstance(step, ExtractFile) for step in steps):
                together.wait(0.2)  # time for somebody else to come
            return done(*steps)
        finally:
            inside.release()

    monkeypatch.setattr(node.journal, "done", watched)
    node.publish(files=[from_image("/a", IMAGE, "/kubelet"), from_image("/b", other, "/tool"), inline("/c", "1")])
    async with node.connected():
        await node.reconcile()
    assert not together.is_set()
    assert (node.read("/a"), node.read("/b"), node.read("/c")) == ("binary", "tool", "1")


async def test_an_image_that_cannot_be_pulled_fails_alone(node: OscAgent) -> None:
    """Isolation: named with its cause, the unit that needs it waits, all else is applied; later it is caught up."""
    unit = {"name": "kubelet.service", "content": SLEEP, "filePaths": ["/opt/bin/kubelet"]}
    checksum = node.publish(
        files=[from_image("/opt/bin/kubelet", IMAGE, "/kubelet"), inline("/a", "1")],
        units=[unit, {"name": "other.service", "content": SLEEP}],
    )
    async with node.connected():
        with pytest.raises(ApplyFailed):
            await node.reconcile()
        assert node.read("/a") == "1"
        assert node.host.units["other.service"].active_state == "active"
        assert node.host.jobs.count(("restart", "kubelet.service")) == 0
        node.images.images[IMAGE] = {"/kubelet": b"binary"}
        await node.reconcile()
        assert node.host.jobs.count(("restart", "kubelet.service")) == 1
        assert node.applied() == checksum


async def test_containerd_is_not_restarted_while_it_pulls(runtime: OscAgent) -> None:
    """Contract 6.16: a restart of containerd would cut off the pulls of the same pass; it follows after them."""
    runtime.images.images[IMAGE] = {"/kubelet": b"binary"}
    runtime.images.blocked = asyncio.Event()
    units = [{"name": "other.service", "content": SLEEP}]
    runtime.publish(files=[from_image("/opt/bin/kubelet", IMAGE, "/kubelet")], units=units, criConfig=containerd())
    async with runtime.connected(), asyncio.TaskGroup() as group:
        group.create_task(runtime.reconcile())
        await runtime.host.wait_called("RestartUnit")
        assert runtime.host.jobs == [("restart", "other.service")]
        runtime.images.blocked.set()
    assert runtime.host.jobs == [("restart", "other.service"), ("restart", "containerd.service")]
