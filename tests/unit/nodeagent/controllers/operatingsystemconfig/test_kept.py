"""Beside an OSC that is not begun, as it waits for a drain or is refused, the last one is kept up, to the end of each repair."""

import asyncio
import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from agents.core.files import FileError
from agents.kube.models import LEASES, NODES, PODS, SECRETS, format_micro_time
from agents.runtime.controller import Environment
from agents.runtime.metrics import Metrics
from nodeagent.controllers.operatingsystemconfig import serial as serial_module
from nodeagent.controllers.operatingsystemconfig.reporter import ApplyFailed
from nodeagent.host.consistency import Finding
from nodeagent.host.extracted_files import ExtractedFiles
from osc.errors import InvalidOSC
from osc.types import File
from tests.support.drifting import restarted_since, touch
from tests.support.in_place import KUBELET, drain, metadata
from tests.support.kept import FILES, UNITS, WANTED, be_killed_in_a_repair, begin, publish, start_again
from tests.support.osc_agent import HOSTNAME, SECRET, OscAgent, from_secret, inline
from tests.support.tasks import running

SERIAL = {"reconciliation.osc.node-agent.gardener.cloud/serial": "true"}


def give_lease(node: OscAgent, holder: str | None) -> None:
    """Let another node of the pool have the Lease, or nobody."""
    lease = node.api.read(LEASES, SECRET, "kube-system") or {"metadata": {"name": SECRET, "namespace": "kube-system"}}
    now = format_micro_time(node.clock.now())
    held = {"holderIdentity": holder, "leaseDurationSeconds": 600, "acquireTime": now, "renewTime": now}
    node.api.put(LEASES, {**lease, "spec": held if holder else {}})


def holder_of_lease(node: OscAgent) -> str | None:
    """Return who has the Lease of the pool."""
    lease = node.api.read(LEASES, SECRET, "kube-system")
    return None if lease is None else lease["spec"].get("holderIdentity")


async def kept_for_hours(node: OscAgent) -> None:
    """Assert that drift is put right now, and that the update still waits."""
    await asyncio.sleep(3 * 3600)
    touch(node, "/etc/motd", "wrong")
    await asyncio.sleep(60)
    assert (node.read("/etc/motd"), node.read(KUBELET)) == ("old", "{}")
    assert node.status_document()["phase"] == "waitingForDrain"


async def test_a_repair_that_fails_is_repeated(node: OscAgent) -> None:
    """Contract 9 W14: what it needs is away for a while; the status says so meanwhile."""
    await begin(node)
    publish(node, cpuManagerPolicy="static")
    async with node.controlling():
        await asyncio.sleep(10)
        node.api.remove(SECRETS, "s", "kube-system")
        touch(node, "/etc/s", "wrong")
        await asyncio.sleep(5)
        assert [item["name"] for item in node.status_document()["items"]] == ["file /etc/s"]
        node.put_secret("s", "key", "x")
        await kept_for_hours(node)
        assert (node.read("/etc/s"), node.status_document()["items"]) == ("x", [])


async def test_a_job_of_a_repair_is_followed(node: OscAgent) -> None:
    """Contract 9 W26: a restart that takes long; no pool goes on meanwhile."""
    await begin(node, serial=True)
    publish(node, serial=True, cpuManagerPolicy="static")
    async with node.controlling():
        await asyncio.sleep(10)
        assert holder_of_lease(node) is None
        node.host.gates["g"].clear()
        touch(node, "/etc/slow", "wrong")
        restarted_since(node, seconds=600, name="slow.service")
        await asyncio.sleep(30)
        assert [item["name"] for item in node.status_document()["items"]] == ["unit slow.service"]
        assert holder_of_lease(node) == HOSTNAME
        await node.host.open_gate("g")
        await kept_for_hours(node)
        assert (node.jobs.pending, holder_of_lease(node)) == ({}, None)


async def test_a_killed_repair_is_gone_on_with(node: OscAgent) -> None:
    """Contract 6.4: of the process that was killed only the journal is left."""
    await be_killed_in_a_repair(node)
    node.start_process()
    async with node.controlling():
        await asyncio.sleep(60)
        assert node.read("/etc/motd") == "old"
        await kept_for_hours(node)


async def test_the_agent_restarts_itself_for_a_repair(node: OscAgent) -> None:
    """Contract 6.8: started with a file that was wrong: one restart, which the status says, and the wait goes on."""
    await begin(node)
    publish(node, cpuManagerPolicy="static")
    async with node.connected():
        await node.reconcile()
        touch(node, "/etc/own", "wrong")
        restarted_since(node, seconds=600, name="gardener-node-agent.service")
        node.drift.suspect("/etc/own")
        await node.reconcile()
        assert (node.read("/etc/own"), node.status_document()["phase"]) == ("own", "restarting")
        assert node.restart_reason() is not None
    start_again(node)
    async with node.controlling():
        await kept_for_hours(node)
        assert node.restart_reason() is None


async def test_a_kept_osc_is_never_said_to_be_applied(node: OscAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: whoever waits for the phase `applied` waits for the OSC that was asked for; nor is there an event for each repair."""
    await begin(node)
    publish(node, cpuManagerPolicy="static")
    said: list[str] = []
    write = node.status.write

    async def note() -> None:
        await write()
        said.append(node.status_document()["phase"])

    async with node.controlling():
        await asyncio.sleep(10)
        events = node.events("OSCApplied")
        monkeypatch.setattr(node.status, "write", note)
        touch(node, "/etc/motd", "wrong")
        await asyncio.sleep(60)
        assert (node.read("/etc/motd"), set(said)) == ("old", {"waitingForDrain"})
        assert node.events("OSCApplied") == events


async def test_a_drained_node_whose_osc_is_refused_keeps_its_pods(node: OscAgent) -> None:
    """Contract 6.13: a repair of the OSC before is no update, so no Pod is deleted and no result said."""
    await begin(node)
    node.run_pod("etcd")
    node.publish_bytes(b"kind: [")
    async with node.controlling():
        await asyncio.sleep(10)
        drain(node)
        touch(node, "/etc/motd", "wrong")
        await asyncio.sleep(60)
        assert (node.read("/etc/motd"), metadata(node)[0]) == ("old", None)
        assert len(node.api.stored(PODS)) == 1


async def test_w35_an_update_without_the_kubelets_configuration_is_refused(node: OscAgent) -> None:
    """Contract 9 W35: event and status say so, and the OSC before is kept up."""
    await begin(node)
    node.publish(files=FILES, units=UNITS[1:], inPlaceUpdates=WANTED)
    async with node.controlling():
        await asyncio.sleep(60)
        touch(node, "/etc/motd", "wrong")
        await asyncio.sleep(700)
        assert (node.read("/etc/motd"), node.status_document()["phase"]) == ("old", "failing")
        assert len(node.events("OSCInvalid")) == 1


async def test_an_update_waits_for_its_drain_where_last_applied_is_damaged(node: OscAgent) -> None:
    """Contract 6.13: what was applied is known from the generation before; said, and nothing begins."""
    await begin(node)
    node.paths.last_applied.write_bytes(b"{")
    node.start_process()
    publish(node, cpuManagerPolicy="static")
    async with node.controlling():
        await asyncio.sleep(60)
        assert (node.read(KUBELET), node.status_document()["phase"]) == ("{}", "waitingForDrain")
        assert len(node.events("StateDamaged")) == 1
        drain(node)
        await asyncio.sleep(1)
        assert (node.read(KUBELET), metadata(node)[0]) == ('{"cpuManagerPolicy": "static"}', "successful")


async def test_a_disk_that_cannot_be_looked_at_keeps_no_lease(node: OscAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 6.11: the lock of a serial pool is taken for a repair, not for the look before it."""
    await begin(node, serial=True)

    def fail(_self: ExtractedFiles, _files: Iterable[File]) -> Iterable[Finding]:
        raise FileError("file not read", Path("/x"), OSError(5, "Input/output error"))

    monkeypatch.setattr(ExtractedFiles, "changed", fail)
    publish(node, serial=True, cpuManagerPolicy="static")
    async with node.controlling():
        await asyncio.sleep(1800)
    assert holder_of_lease(node) is None


async def test_a_repair_that_cannot_succeed_keeps_no_lease(node: OscAgent) -> None:
    """Contract 6.11: a Secret that only the OSC before names is gone for good; the node that is drained first may be another one."""
    await begin(node, serial=True)
    publish(node, serial=True, cpuManagerPolicy="static")
    environment = Environment(clock=node.clock, rng=Random(1), metrics=Metrics())
    renewing = serial_module.new_controller(node.lock)
    async with node.controlling(), running(lambda: renewing.run(environment)):
        await asyncio.sleep(10)
        node.api.remove(SECRETS, "s", "kube-system")
        touch(node, "/etc/s", "wrong")
        for _ in range(12):
            await asyncio.sleep(600)
            assert holder_of_lease(node) is None
        assert [item["name"] for item in node.status_document()["items"]] == ["file /etc/s"]


async def test_drift_is_told_and_counted_once_while_others_have_the_lease(node: OscAgent) -> None:
    """Contract 6.11, 9 W14: nothing is put right meanwhile, and nobody looks again."""
    await begin(node, serial=True)
    publish(node, serial=True, cpuManagerPolicy="static")

    def lend(**spec: object) -> None:
        lease = node.api.read(LEASES, SECRET, "kube-system") or {
            "metadata": {"name": SECRET, "namespace": "kube-system"}
        }
        node.api.put(LEASES, {**lease, "spec": spec})

    async with node.controlling():
        await asyncio.sleep(10)
        now = format_micro_time(node.clock.now())
        lend(holderIdentity="other", leaseDurationSeconds=600, acquireTime=now, renewTime=now)
        touch(node, "/etc/slow", "wrong")
        restarted_since(node, seconds=600, name="slow.service")
        await asyncio.sleep(60)
        assert (node.read("/etc/slow"), node.status_document()["phase"]) == ("wrong", "waitingForTurn")
        give_lease(node, None)
        await asyncio.sleep(60)
        assert node.read("/etc/slow") == "slow"
    assert (node.drifted, node.budget.count("slow.service")) == ([("FileMismatch", "put right")], 1)


async def test_drift_is_told_and_counted_once_while_the_disk_is_full(
    node: OscAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 9 W14: the journal comes first, and cannot be written."""
    await begin(node)
    publish(node, cpuManagerPolicy="static")

    def full(*_arguments: object, **_more: object) -> None:
        raise FileError("journal not written", Path("/x"), OSError(28, "No space left on device"))

    async with node.connected():
        await node.reconcile()
        touch(node, "/etc/slow", "wrong")
        restarted_since(node, seconds=600, name="slow.service")
        with monkeypatch.context() as without_space:
            without_space.setattr(node.journal, "begin", full)
            for _ in range(8):
                with pytest.raises(FileError):
                    await node.reconcile()
        await node.reconcile()
        assert node.read("/etc/slow") == "slow"
    assert (node.drifted, node.budget.count("slow.service")) == ([("FileMismatch", "put right")], 1)


async def test_a_refusal_is_said_beside_what_fails(node: OscAgent) -> None:
    """Ours: until an OSC is accepted, also while a repair of the one before fails."""
    await begin(node)
    node.publish_bytes(b"kind: [")

    def items() -> list[str]:
        return sorted(item["name"] for item in node.status_document()["items"])

    async with node.controlling():
        await asyncio.sleep(10)
        node.api.remove(SECRETS, "s", "kube-system")
        touch(node, "/etc/s", "wrong")
        await asyncio.sleep(700)
        assert items() == ["file /etc/s", "operating system config"]
        node.put_secret("s", "key", "x")
        await asyncio.sleep(1300)
        assert (items(), node.read("/etc/s")) == (["operating system config"], "x")
        publish(node)
        await asyncio.sleep(10)
        assert (items(), node.status_document()["phase"]) == ([], "applied")


async def test_an_update_that_was_begun_and_waits_again_says_nothing_is_put_right(node: OscAgent) -> None:
    """Contract 9 W14: the drain is taken back after an item failed: drift would be put right after the next one only."""
    await begin(node)
    drain(node)
    node.publish(
        files=[inline(KUBELET, '{"cpuManagerPolicy": "static"}'), from_secret("/etc/t", "t"), *FILES[1:]],
        units=UNITS,
        inPlaceUpdates=WANTED,
    )
    async with node.connected():
        with pytest.raises(ApplyFailed):
            await node.reconcile()
    async with node.controlling():
        node.api.put(NODES, {**node.node(), "status": {"conditions": []}})
        await asyncio.sleep(1300)
        touch(node, "/etc/motd", "wrong")
        await asyncio.sleep(1300)
        assert (node.drifted, node.status_document()["phase"]) == ([], "waitingForDrain")
        drain(node)
        node.put_secret("t", "key", "y")
        await asyncio.sleep(1300)
        assert (node.read("/etc/t"), node.read("/etc/motd")) == ("y", "old")
        assert metadata(node)[0] == "successful"


async def test_a_refusal_is_said_again_after_a_repair(node: OscAgent) -> None:
    """Ours: data that is refused under the checksum that is applied: never failing without a cause."""
    checksum = await begin(node)
    async with node.connected():
        node.publish_bytes(b"kind: [", annotations={"checksum/data-script": checksum})
        for _ in range(2):
            touch(node, "/etc/motd", "wrong")
            node.drift.suspect("/etc/motd")
            for _ in range(4):
                with contextlib.suppress(InvalidOSC):
                    await node.reconcile()
                found = node.status_document()
                assert (found["phase"], found["items"]) != ("failing", [])


async def test_a_repair_beside_a_refused_osc_is_said_to_be_under_way(node: OscAgent) -> None:
    """Contract 6.11: it had to wait for its turn and has it now."""
    await begin(node, serial=True)
    node.publish_bytes(b"kind: [", annotations=SERIAL)
    async with node.controlling():
        await asyncio.sleep(10)
        give_lease(node, "other")
        node.host.gates["g"].clear()
        touch(node, "/etc/slow", "wrong")
        restarted_since(node, seconds=600, name="slow.service")
        await asyncio.sleep(60)
        assert node.status_document()["phase"] == "waitingForTurn"
        give_lease(node, None)
        await asyncio.sleep(30)
        assert (node.status_document()["phase"], holder_of_lease(node)) == ("failing", HOSTNAME)
        await node.host.open_gate("g")
        await asyncio.sleep(700)
        assert holder_of_lease(node) is None


async def test_a_refused_osc_gives_the_lease_back(node: OscAgent) -> None:
    """Contract 6.11: the one before was waiting for its static pods, with the Lease."""
    pod = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "etcd"}})
    node.publish(files=[inline("/etc/kubernetes/manifests/etcd.yaml", pod)], serial=True)
    environment = Environment(clock=node.clock, rng=Random(1), metrics=Metrics())
    renewing = serial_module.new_controller(node.lock)
    async with node.controlling(), running(lambda: renewing.run(environment)):
        await asyncio.sleep(60)
        assert holder_of_lease(node) == HOSTNAME
        node.publish_bytes(b"kind: [", annotations=SERIAL)
        await asyncio.sleep(1300)
        assert holder_of_lease(node) is None


async def test_a_full_disk_keeps_no_lease(node: OscAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 6.11: a repair that cannot even begin."""
    await begin(node, serial=True)
    publish(node, serial=True, cpuManagerPolicy="static")

    def full(*_arguments: object, **_more: object) -> None:
        raise FileError("journal not written", Path("/x"), OSError(28, "No space left on device"))

    async with node.connected():
        await node.reconcile()
        monkeypatch.setattr(node.journal, "begin", full)
        touch(node, "/etc/motd", "wrong")
        node.drift.suspect("/etc/motd")
        for _ in range(3):
            with pytest.raises(FileError):
                await node.reconcile()
            assert holder_of_lease(node) is None
