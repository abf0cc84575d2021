"""A node changes from Gardener's agent to ours and back; the disk is all that one knows of the other.

`from_gardener/disk` is a node that Gardener's agent left in the middle of an update in place, written after contract 2, 3, 4.4, 6.3
and 6.4: `/etc/done` and `done.service` are done; the first drop-in of `kubelet.service` too, but a power cut has taken it back, for
it was not synced (contract 9, W2). `to_gardener` is what ours leaves.
"""

import asyncio
import base64
import json
import shutil
import stat
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from agents.core.generations import Generations
from agents.core.yamlio import load_yaml
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.models import NODES
from agents.pki.store import FileKubeconfigStore
from agents.runtime.source import ChannelSource
from nodeagent.config import find, load
from nodeagent.config_file import write_secret_name
from nodeagent.controllers import token
from nodeagent.startup.stale_files import StaleFiles
from tests.lab.pki import Authority
from tests.support.fake_systemd import FakeSystemd
from tests.support.gardener_reader import Kubeconfig, LastApplied, NodeAgentConfig, PendingChanges
from tests.support.osc_agent import (
    SECRET,
    SLEEP,
    FakeContainerd,
    OscAgent,
    containerd,
    from_image,
    inline,
    run_controller,
)

DATA = Path(__file__).parents[2] / "data/handover"
SECRETS = ("kubeconfig", "token", "auth-token", "last-applied-osc.yaml", "last-computed-osc-changes.yaml")
KUBELET = "/var/lib/kubelet/config/kubelet"
VALITAIL = "gardener-valitail"


def mode(path: Path) -> int:
    """Return a file's permissions."""
    return stat.S_IMODE(path.stat().st_mode)


def drained(node: OscAgent) -> None:
    """Let the Node be ready for an update in place."""
    conditions = [{"type": "InPlaceUpdate", "status": "True", "reason": "ReadyForUpdate"}]
    node.api.put(NODES, {**node.node(), "status": {"conditions": conditions}})


@pytest.fixture
def taken_over(tmp_path: Path, host: FakeSystemd) -> OscAgent:
    """A node that Gardener's agent has left."""
    shutil.copytree(DATA / "from_gardener/disk", tmp_path, dirs_exist_ok=True)
    node = OscAgent(tmp_path, host)
    certificate, key = Authority.create("ca").issue_client("gardener.cloud:node-agent:machine:machine-1", [])
    text = node.paths.kubeconfig.read_text()
    text = text.replace("CERTIFICATE", base64.b64encode(certificate).decode())
    node.paths.kubeconfig.write_text(text.replace("KEY", base64.b64encode(key).decode()))
    for path in tmp_path.rglob("*"):
        if path.name in SECRETS or path.suffix in (".service", ".conf"):
            path.chmod(0o600)
    node.paths.temporary.chmod(0)
    host.write_unit("containerd.service", SLEEP)
    node.register_node()
    drained(node)
    return node


def kubelet_that_bootstraps(node: OscAgent) -> None:
    """Let a restarted kubelet get another certificate."""

    def bootstrap() -> None:
        node.paths.kubelet_client_certificate.parent.mkdir(exist_ok=True)
        node.paths.kubelet_client_certificate.write_text("new")
        node.paths.kubelet_kubeconfig.write_text("{}")

    node.machine.on_restart = bootstrap


async def test_an_update_that_gardeners_agent_began_is_finished(taken_over: OscAgent) -> None:
    """Contract 6.4, 6.13, 9 W1: what its file has left is done, and nothing else: files, units with all drop-ins, containerd, credentials."""
    node = taken_over
    data = (DATA / "from_gardener/osc.yaml").read_bytes()
    assert node.journal.load_last_applied().decoded is not None
    done = [(node.root / path).stat().st_ino for path in ("etc/done", "etc/systemd/system/done.service")]
    kubelet_that_bootstraps(node)
    checksum = node.publish_bytes(data)
    assert checksum == sha256(data).hexdigest()
    async with node.connected():
        await node.reconcile()
    assert node.applied() == checksum
    assert node.node()["metadata"]["labels"]["node.machine.sapcloud.io/update-result"] == "successful"
    assert (node.machine.renewals, node.machine.resyncs, node.machine.kubelet_restarts) == (1, 1, 1)
    assert node.paths.kubelet_client_certificate.read_text() == "new"
    assert '"10%"' in (node.read(KUBELET) or "")
    assert [(node.root / path).stat().st_ino for path in ("etc/done", "etc/systemd/system/done.service")] == done
    drop_ins = {path.name: path.read_text() for path in (node.root / "etc/systemd/system/kubelet.service.d").iterdir()}
    assert sorted(drop_ins) == ["10-a.conf", "20-b.conf", "99-admin.conf"]
    assert ("A=2" in drop_ins["10-a.conf"], "B=2" in drop_ins["20-b.conf"]) == (True, True)
    assert not [path for path in ("etc/old", "etc/systemd/system/old.service") if (node.root / path).exists()]
    assert [path.name for path in (node.root / "etc/containerd/certs.d").iterdir()] == ["docker.io"]
    assert 'sandbox_image = "registry.example/pause:3.10"' in (node.read("/etc/containerd/config.toml") or "")
    assert sorted(job for job in node.host.jobs if job[0] != "stop") == [
        ("restart", "containerd.service"),
        ("restart", "kubelet.service"),
    ]
    left = PendingChanges.read(node.paths.pending_changes)
    assert (left.operating_system_config_checksum, left.finished) == (checksum, True)


async def test_credentials_configuration_and_tokens_are_taken_over(taken_over: OscAgent) -> None:
    """Contract 2, 3, 4.4, 9 W22, W24: kubeconfig and configuration are used as they are; modes become right; scratch files go."""
    node = taken_over
    access = await FileKubeconfigStore(node.paths.kubeconfig, generations=Generations(node.paths.generations)).load()
    assert access is not None
    assert (access.server, access.ca_file) == (
        "https://api.shoot.example",
        Path("/var/lib/gardener-node-agent/cluster-ca.crt"),
    )
    config = load(find(node.paths.base, "v1.150.0"))
    assert config.controllers.operating_system_config.secret_name == SECRET
    assert config.server.health_address == ("", 2751)
    node.put_secret(VALITAIL, "token", "a token of yesterday")
    (sync,) = config.controllers.token.sync_configs
    at_root = sync.model_copy(update={"path": f"{node.root}{sync.path}"})
    tokens = config.controllers.token.model_copy(update={"sync_configs": (at_root,)})
    await run_controller(token.new_controller(client=node.client, config=tokens, resync=ChannelSource()), 5)
    assert mode(node.root / "var/lib/valitail/auth-token") == 0o640
    await StaleFiles(paths=node.paths, journal=node.journal).run()
    assert (mode(node.paths.temporary), list(node.paths.temporary.iterdir())) == (0o700, [])
    assert (node.paths.credentials / "token").exists(), "nobody's any longer, and not ours to remove"


class StuckContainerd(FakeContainerd):
    """A containerd that at some moment answers no longer."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = 100

    async def version(self) -> str:
        """Return the version, or wait for ever."""
        if self.answers == 0:
            await asyncio.Event().wait()
        self.answers -= 1
        return await super().version()


async def test_gardeners_agent_can_read_what_ours_leaves_in_the_middle(tmp_path: Path, host: FakeSystemd) -> None:
    """Contract 3, 6.3, 6.4: an update in place, stopped before its first step, in the schema of Gardener's agent, key by key."""
    host.write_unit("containerd.service", SLEEP)
    (tmp_path / "etc/os-release").write_text('PRETTY_NAME="Garden Linux 1.0.0"\n')
    node = OscAgent(tmp_path, host)
    node.containerd = stuck = StuckContainerd()
    node.start_process()
    node.register_node()
    publish(node, 1)
    async with node.connected():
        await node.reconcile()
    drained(node)
    checksum = publish(node, 2)
    stuck.answers = 1  # for the plan; the first step asks again
    async with node.connected():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await node.reconcile()
    found = PendingChanges.read(node.paths.pending_changes)
    assert not found.finished
    document = load_yaml(node.paths.pending_changes.read_bytes())
    assert isinstance(document, dict)
    assert document.pop("x-journal")
    assert document.pop("operatingSystemConfigChecksum") == checksum
    assert document == load_yaml((DATA / "to_gardener/last-computed-osc-changes.yaml").read_bytes())
    last = LastApplied.read(node.paths.last_applied)
    assert last.spec.in_place_updates.kubelet == "1.33.1"
    assert last.spec.units[-1].drop_ins[-1].name == "30-env_config.conf"
    modes = {
        "var/lib/gardener-node-agent/last-applied-osc.yaml": 0o600,
        "var/lib/gardener-node-agent/last-computed-osc-changes.yaml": 0o600,
        "etc/systemd/system/kubelet.service": 0o600,
        "etc/systemd/system/kubelet.service.d": 0o755,
        "etc/systemd/system/kubelet.service.d/10-a.conf": 0o600,
        "etc/systemd/system/containerd.service.d/30-env_config.conf": 0o600,
        "etc/containerd/config.toml": 0o644,
        "etc/containerd/certs.d/docker.io/hosts.toml": 0o644,
        "etc/plain": 0o600,
        "etc/executable": 0o755,
    }
    assert {path: mode(tmp_path / path) for path in modes} == modes


def publish(node: OscAgent, version: int) -> str:
    """Publish an OSC, or the next one of it."""
    docker = {
        "upstream": "docker.io",
        "server": f"https://docker-{version}.example",
        "hosts": [{"url": "https://m.example"}],
    }
    old = version == 1
    drop_ins = [{"name": "10-a.conf", "content": f"# {version}\n"}, *([{"name": "20-b.conf", "content": ""}] * old)]
    kubelet = {"name": "kubelet.service", "enable": True, "content": SLEEP, "dropIns": drop_ins}
    node.images.images = {"kubelet:1": {"/kubelet": b"1"}}
    return node.publish(
        files=[
            inline(KUBELET, json.dumps({"evictionHard": {"memory.available": f"{version}%"}})),
            inline("/etc/plain", str(version)),
            inline("/etc/executable", str(version), 0o755),
            from_image("/opt/bin/kubelet", f"kubelet:{version}", "/kubelet"),
            *([inline("/etc/old", "old")] * old),
        ],
        units=[
            {**kubelet, "filePaths": ["/opt/bin/kubelet", KUBELET]},
            *([{"name": "old.service", "content": SLEEP}] * old),
            {"name": "off.service", "enable": old, "content": SLEEP},
        ],
        criConfig=containerd(
            sandboxImage=f"pause:{version}", registries=[docker, *([{"upstream": "old.example"}] * old)]
        ),
        inPlaceUpdates={
            "operatingSystemVersion": "1.0.0",
            "kubelet": f"1.3{version + 2}.1",
            "credentialsRotation": {"certificateAuthorities": {"lastInitiationTime": f"2026-0{version}-01T00:00:00Z"}},
        },
    )


async def test_gardeners_agent_can_read_our_kubeconfig_and_configuration(taken_over: OscAgent) -> None:
    """Contract 2, 4.4, 7.7: after a renewal and a change of the Secret's name; a CA is named or inline, never both."""
    node = taken_over
    store = FileKubeconfigStore(node.paths.kubeconfig, generations=Generations(node.paths.generations))
    access = await store.load()
    assert access is not None
    certificate, key = Authority.create("ca").issue_client("gardener.cloud:node-agent:machine:machine-1", [])
    renewed = replace(access, credentials=Credentials(client_certificate=certificate, client_key=key))
    await store.save(renewed)
    named = Kubeconfig.read(node.paths.kubeconfig)
    assert named.clusters[0].cluster.certificate_authority == "/var/lib/gardener-node-agent/cluster-ca.crt"
    authority = Authority.create("ca").certificate_pem
    await store.save(
        ClusterAccess(server="https://api.shoot.example", ca_data=authority, credentials=renewed.credentials)
    )
    assert Kubeconfig.read(node.paths.kubeconfig).clusters[0].cluster.certificate_authority_data
    assert mode(node.paths.kubeconfig) == 0o600
    path = find(node.paths.base, "v1.150.0")
    write_secret_name(path, "another", Generations(node.paths.generations))
    config = NodeAgentConfig.read(path)
    assert config.controllers.operating_system_config.secret_name == "another"
    assert mode(path) == 0o600
