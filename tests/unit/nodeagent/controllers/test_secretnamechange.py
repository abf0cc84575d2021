"""The Node's label that names the OSC Secret."""

import asyncio
from pathlib import Path

import pytest
import yaml

from agents.core.generations import Generations
from agents.kube.errors import Forbidden
from agents.kube.models import SECRETS
from agents.runtime.controller import Controller
from nodeagent.controllers import secretnamechange
from nodeagent.host.restart_budget import RestartBudget
from tests.support.osc_agent import b64
from tests.support.own_node import OwnNode

LABEL = "worker.gardener.cloud/gardener-node-agent-secret-name"
CONFIG = {
    "apiVersion": "nodeagent.config.gardener.cloud/v1alpha1",
    "kind": "NodeAgentConfiguration",
    "apiServer": {"server": "https://api.example", "caFile": "/ca.crt"},
    "controllers": {"operatingSystemConfig": {"secretName": "old", "kubernetesVersion": "1.34.4"}},
}


@pytest.fixture
def path(machine: OwnNode) -> Path:
    """The configuration file, with the name `old`."""
    file = machine.paths.base / "config-v1.150.0.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(CONFIG))
    return file


def new(machine: OwnNode, path: Path, running_with: str = "old") -> Controller:
    """Return the controller, as a process that has just started has it."""
    return secretnamechange.new_controller(
        client=machine.client,
        nodes=machine.nodes,
        identity=machine.identity,
        events=machine.speaker("secret-name-change"),
        shutdown=machine.shutdown,
        budget=RestartBudget(path=machine.paths.restarts, clock=machine.clock, boot_id="boot"),
        config_path=path,
        generations=Generations(path.parent / "generations"),
        running_with=running_with,
    )


def publish(machine: OwnNode, name: str) -> None:
    """Create an OSC Secret."""
    machine.api.put(SECRETS, {"metadata": {"name": name, "namespace": "kube-system"}, "data": {"osc.yaml": b64("{}")}})


def named(path: Path) -> str:
    """Return the name in the file."""
    return str(yaml.safe_load(path.read_text())["controllers"]["operatingSystemConfig"]["secretName"])


def outcome(machine: OwnNode, path: Path) -> tuple[str | None, str]:
    """Return why the process ends, and the name in the file."""
    return machine.shutdown.requested, named(path)


async def test_a_changed_label_is_written_and_ends_the_process(machine: OwnNode, path: Path) -> None:
    """Contract 7.7: the new name goes into the file, 0600, and the process ends; whether the Node appears with it or gets it."""
    publish(machine, "new")
    machine.register(labels={LABEL: "old"})
    async with machine.running(new(machine, path)):
        await asyncio.sleep(60)
        assert outcome(machine, path) == (None, "old")
        machine.register(labels={LABEL: "new"})
        await asyncio.sleep(1)
        assert outcome(machine, path) == ("name of the OSC secret changed", "new")
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_node_that_appears_with_another_name_is_followed(machine: OwnNode, path: Path) -> None:
    """Contract 1.8, 7.7: the Node that registers later than the controller has started brings the name."""
    publish(machine, "new")
    async with machine.running(new(machine, path)):
        machine.register(labels={LABEL: "new"})
        await asyncio.sleep(1)
        assert outcome(machine, path) == ("name of the OSC secret changed", "new")


@pytest.mark.parametrize("label", [None, "", "Not_A_Secret", "-x", "x" * 254])
async def test_w06_an_empty_secret_name_is_ignored(machine: OwnNode, path: Path, label: str | None) -> None:
    """Contract 7.7, 9 W6: removed, empty or impossible: the file stays, the process stays, and it is said once."""
    before = path.read_bytes()
    machine.register(labels={LABEL: "old"})
    async with machine.running(new(machine, path)):
        for _ in range(3):
            machine.register(labels={} if label is None else {LABEL: label})
            await asyncio.sleep(200)
        assert (machine.shutdown.requested, path.read_bytes()) == (None, before)
    (note,) = machine.notes("SecretNameIgnored")
    assert "old stays in use" in note


async def test_a_node_that_never_had_the_label_is_left_in_peace(machine: OwnNode, path: Path) -> None:
    """Contract 7.7: a Node without the label is nothing to talk about."""
    machine.register()
    async with machine.running(new(machine, path)):
        await asyncio.sleep(600)
        assert machine.notes("SecretNameIgnored") == []
        assert machine.shutdown.requested is None


async def test_a_secret_that_cannot_be_read_is_waited_for(machine: OwnNode, path: Path) -> None:
    """Contract 4.8, 7.7: a name whose Secret is missing or forbidden is not taken over until it can be read; said once for each."""
    machine.register(labels={LABEL: "new"})
    fault = machine.api.fail(Forbidden("no", status=403), path="/api/v1/namespaces/kube-system/secrets/new")
    async with machine.running(new(machine, path)):
        await asyncio.sleep(600)
        assert machine.restarts() == 0
        machine.api._faults.remove(fault)
        await asyncio.sleep(600)
        assert outcome(machine, path) == (None, "old")
        reads = [call for call in machine.api.calls if call.path.endswith("/secrets/new")]
        assert len(reads) <= 21
        publish(machine, "new")
        await asyncio.sleep(61)
        assert outcome(machine, path) == ("name of the OSC secret changed", "new")
    (note,) = machine.notes("SecretNameIgnored")
    assert "secret new" in note


async def test_a_file_that_is_changed_back_does_not_restart_us_for_ever(machine: OwnNode, path: Path) -> None:
    """Contract 7.7: where an OSC writes the old name back, own restarts stay within three an hour, across processes."""
    publish(machine, "new")
    machine.register(labels={LABEL: "new"})
    ends = 0
    for _ in range(30):
        path.write_text(yaml.safe_dump(CONFIG))
        machine.shutdown = type(machine.shutdown)()
        async with machine.running(new(machine, path)):
            await asyncio.sleep(100)
            ends += machine.shutdown.requested is not None
    assert ends == 3
    assert any("changes too often" in note for note in machine.notes("SecretNameIgnored"))


async def test_a_process_with_another_name_than_its_file_only_restarts(machine: OwnNode, path: Path) -> None:
    """Contract 7.7: killed between writing and ending, or changed by somebody else: the file is right, the process is not."""
    publish(machine, "old")
    before = path.read_bytes()
    machine.register(labels={LABEL: "old"})
    async with machine.running(new(machine, path, "before")):
        assert machine.shutdown.requested == "name of the OSC secret changed"
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [None, "{", "kind: Other"])
async def test_an_unusable_file_ends_nothing(machine: OwnNode, path: Path, content: str | None) -> None:
    """Contract 7.7: a configuration file that is missing or broken is an error of this controller alone, and is tried again."""
    publish(machine, "new")
    machine.register(labels={LABEL: "new"})
    path.unlink() if content is None else path.write_text(content)
    async with machine.running(new(machine, path)):
        await asyncio.sleep(60)
        assert machine.shutdown.requested is None
        path.write_text(yaml.safe_dump(CONFIG))
        await asyncio.sleep(120)
        assert outcome(machine, path) == ("name of the OSC secret changed", "new")


async def test_a_file_that_user_data_wrote_back_is_not_what_the_process_runs_with(machine: OwnNode, path: Path) -> None:
    """Contract 7.7, issue 4: while the newest known configuration is in use, an older one with another name is no new name."""
    generations, first = Generations(path.parent / "generations"), path.read_bytes()
    generations.adopt(path, first)
    generations.write(path, first.replace(b"secretName: old", b"secretName: new"), mode=0o600)
    path.write_bytes(first)
    publish(machine, "new")
    machine.register(labels={LABEL: "new"})
    async with machine.running(new(machine, path, "new")):
        await asyncio.sleep(60)
        assert machine.shutdown.requested is None
        assert path.read_bytes() == first


@pytest.mark.parametrize("content", ["{", "", None])
async def test_a_new_name_is_followed_although_the_file_is_damaged(
    machine: OwnNode, path: Path, content: str | None
) -> None:
    """Contract 7.7, issue 4: the OSC that would mend the file cannot be read under the old name; so the newest known one gets the new name."""
    generations = Generations(path.parent / "generations")
    generations.adopt(path, path.read_bytes())
    path.unlink() if content is None else path.write_text(content)
    publish(machine, "new")
    machine.register(labels={LABEL: "new"})
    async with machine.running(new(machine, path)):
        await asyncio.sleep(1)
        assert outcome(machine, path) == ("name of the OSC secret changed", "new")
    aside = path.with_name(f"{path.name}.damaged")
    assert (aside.read_text() if aside.exists() else None) == content
