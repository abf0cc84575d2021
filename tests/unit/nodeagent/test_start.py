"""What a process that has just started does, whatever stands against it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
import yaml

from agents.core import files
from agents.core.errors import FatalError
from agents.core.generations import Generations
from agents.core.shutdown import Shutdown
from agents.kube.client import Client
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.models import EVENTS, LEASES, NODES
from agents.pki.store import FileKubeconfigStore
from nodeagent import app, config
from nodeagent.config_history import Note
from nodeagent.credentials import ClientFactory, CredentialsManager
from nodeagent.host.ctr import CtrSettings
from nodeagent.host.hostname import read_hostname
from nodeagent.host.image_extractor import CtrImageExtractor
from nodeagent.paths import Paths
from nodeagent.startup.kubelet_bootstrap_kubeconfig import KubeletBootstrapKubeconfig
from systemd.manager import SystemdUnitManager
from systemd.notify import ServiceEnvironment
from tests.lab.pki import Authority
from tests.support.fake_api import FakeApi
from tests.support.fake_systemd import FakeSystemd
from tests.unit.nodeagent.test_waiting import CONFIG, nothing


class Machine:
    """A node that has joined, and the process on it."""

    def __init__(self, root: Path) -> None:
        self.paths, self.api = Paths(root=root), FakeApi()
        self.name = read_hostname()
        self.register()
        authority = Authority.create("ca")
        certificate, key = authority.issue_client("me", [], validity=timedelta(days=30))
        self.access = ClusterAccess(
            server="https://api",
            ca_data=authority.certificate_pem,
            credentials=Credentials(client_certificate=certificate, client_key=key),
        )
        self.config_file = root / "config.yaml"
        self.config_file.write_text(yaml.safe_dump(CONFIG))

    def register(self) -> None:
        """Create our Node."""
        self.api.put(NODES, {"metadata": {"name": self.name, "labels": {"kubernetes.io/hostname": self.name}}})

    @property
    def heartbeats(self) -> list[str]:
        """Return the names of all Leases."""
        return [lease["metadata"]["name"] for lease in self.api.stored(LEASES)]

    @asynccontextmanager
    async def running(self, *notes: Note) -> AsyncIterator["asyncio.Task[int]"]:
        """Run the whole process; notes are what was found out about its configuration."""
        shutdown = Shutdown()
        async with asyncio.TaskGroup() as group:
            process = group.create_task(self.run(shutdown, *notes))
            yield process
            shutdown.request("end of the test")
            assert await process == 0

    async def run(self, shutdown: Shutdown, *notes: Note) -> int:
        """Run the whole process until it is asked to end, or does; returns its exit code."""
        return await app.run(
            config.load(self.config_file),
            self.config_file,
            notes=notes,
            ctr=CtrSettings(),
            service=ServiceEnvironment(),
            search_path="/bin",
            owner=app.Owner(shutdown=shutdown, say=lambda _line: None, abort=lambda _code: None),
        )


@pytest.fixture
async def machine(tmp_path: Path, host: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with our Node."""
    found = Machine(tmp_path)
    found.paths.credentials.mkdir(parents=True)
    await FileKubeconfigStore(found.paths.kubeconfig, generations=Generations(found.paths.generations)).save(
        found.access
    )

    async def obtain(_self: CredentialsManager) -> ClusterAccess:
        return found.access

    monkeypatch.setattr(app, "Paths", lambda: found.paths)
    monkeypatch.setattr(app, "read_machine_name", lambda _path: "machine")
    monkeypatch.setattr(app, "SystemdUnitManager", lambda: SystemdUnitManager(address=host.address))
    for server in ("health_server", "metrics_server"):
        monkeypatch.setattr(app, server, lambda **_more: nullcontext())
    monkeypatch.setattr(app, "_end_soon", lambda _abort: None)
    monkeypatch.setattr(CtrImageExtractor, "clean", nothing)
    monkeypatch.setattr(CredentialsManager, "obtain", obtain)
    monkeypatch.setattr(ClientFactory, "client", lambda *_, **__: Client(transport=found.api, rng=Random(1)))
    return found


async def test_a_full_disk_does_not_hold_up_the_heartbeat(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue section 2, 1: that the kubeconfig works cannot be written down; that ends nothing, and is tried until it can."""
    tries = list[int]()

    async def full(_self: FileKubeconfigStore) -> None:
        tries.append(1)
        if len(tries) < 5:
            raise files.FileError("file not written", machine.paths.kubeconfig, OSError(28, "No space left on device"))

    monkeypatch.setattr(FileKubeconfigStore, "confirm", full)
    async with machine.running() as process:
        await asyncio.sleep(30)
        assert not process.done()
        assert len(tries) == 5
        assert machine.heartbeats == [f"gardener-node-agent-{machine.name}"]


async def test_a_systemd_that_does_not_answer_does_not_hold_up_the_heartbeat(
    machine: Machine, host: FakeSystemd
) -> None:
    """Issue section 2, 1: the comparison with what was applied asks systemd, for up to 25 s; the heartbeat waits for neither."""
    machine.paths.last_applied.write_text('{"spec": {"files": [], "units": []}}')
    host.silent.add("ListUnits")
    async with machine.running():
        await asyncio.sleep(2)
        assert "ListUnits" in host.received
        assert machine.heartbeats == [f"gardener-node-agent-{machine.name}"]


async def test_what_was_found_out_about_the_configuration_is_told_once_there_is_a_node_to_tell_it_about(
    machine: Machine,
) -> None:
    """Issue section 2, 7: a damaged configuration of a machine that has not joined yet becomes an event when it has; one."""
    machine.api.remove(NODES, machine.name)
    async with machine.running(Note("ConfigurationDamaged", "it was torn")):
        await asyncio.sleep(30)
        for _ in range(2):
            machine.register()
            await asyncio.sleep(2)
            machine.api.remove(NODES, machine.name)
            await asyncio.sleep(2)
        told = [event["note"] for event in machine.api.stored(EVENTS) if event["reason"] == "ConfigurationDamaged"]
        assert told == ["it was torn"]


async def test_an_agent_that_fails_at_each_start_is_not_taken_for_one_that_works(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue section 2, 1: a start that follows one that failed has its heartbeat once it is complete."""

    async def fail(_self: KubeletBootstrapKubeconfig) -> None:
        await asyncio.sleep(2)
        raise FatalError("what ends every start")

    beating = [f"gardener-node-agent-{machine.name}"]
    with monkeypatch.context() as failing:
        failing.setattr(KubeletBootstrapKubeconfig, "run", fail)
        assert await machine.run(Shutdown()) == 1
        assert machine.heartbeats == beating
        machine.api.remove(LEASES, beating[0], "kube-system")
        for _ in range(2):
            assert await machine.run(Shutdown()) == 1
            assert machine.heartbeats == []
    async with machine.running():
        await asyncio.sleep(2)
        assert machine.heartbeats == beating
    machine.api.remove(LEASES, beating[0], "kube-system")
    with monkeypatch.context() as failing:
        failing.setattr(KubeletBootstrapKubeconfig, "run", fail)
        assert await machine.run(Shutdown()) == 1
        assert machine.heartbeats == beating
