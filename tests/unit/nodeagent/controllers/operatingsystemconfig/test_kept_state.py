"""What is kept beside an OSC that is not begun is told from the state on the disk: interrupted, taken back, damaged or lost."""

import asyncio
import json
from typing import Any

import pytest

from agents.core.errors import AgentError, RetriableError
from agents.core.generations import Generations
from agents.kube.models import NODES, SECRETS
from nodeagent.controllers.operatingsystemconfig.apply_pass import Outcome
from osc.codec import load_state
from tests.support.drifting import restarted_since, touch
from tests.support.in_place import KUBELET, drain, metadata, run_os
from tests.support.kept import FILES, UNITS, WANTED, be_killed_in_a_repair, begin, die, publish, start_again
from tests.support.osc_agent import OscAgent, from_secret, inline
from tests.support.tasks import settle


async def test_an_update_that_was_taken_back_is_no_repair(node: OscAgent) -> None:
    """Contract 6.13: begun on a drained node, refused in between: it goes on as an update, and says its result."""
    checksum = await begin(node)
    drain(node)
    node.machine.kubelet_problem = RetriableError("kubelet is not healthy")
    publish(node, cpuManagerPolicy="static")
    async with node.connected():
        await node.reconcile()
        assert publish(node) == checksum
        await node.reconcile()
        node.publish_bytes(b"kind: [")
        with pytest.raises(AgentError):
            await node.reconcile()
        await node.reconcile()
        publish(node)
        node.machine.kubelet_problem = None
        await node.reconcile()
    assert (node.applied(), metadata(node)[0]) == (checksum, "successful")


async def test_an_update_that_was_taken_back_waits_for_its_drain(
    node: OscAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 6.13: killed as it began, no longer drained, and another one waits: the kubelet gets no configuration meanwhile."""
    await begin(node)
    drain(node)
    node.machine.kubelet_problem = RetriableError("kubelet is not healthy")
    publish(node, cpuManagerPolicy="static")
    async with node.connected():
        await node.reconcile()
        publish(node)
        with monkeypatch.context() as killed:
            killed.setattr(node.applier, "apply", die)
            with pytest.raises(asyncio.CancelledError):
                await node.reconcile()
        node.api.put(NODES, {**node.node(), "status": {"conditions": []}})
        await settle()
        node.host.jobs.clear()
        publish(node, kubeReserved={"cpu": "1"})
        for _ in range(3):
            await node.reconcile()
        assert (node.host.jobs, node.read(KUBELET)) == ([], '{"cpuManagerPolicy": "static"}')
        assert [item["name"] for item in node.status_document()["items"]] == ["operating system config before"]


@pytest.mark.parametrize("why", ["operating system", "kubelet"])
async def test_an_osc_that_is_applied_waits_for_no_drain(node: OscAgent, why: str) -> None:
    """Contract 6.13: nobody drains a node that says it is applied: what differs where last-applied is damaged is drift."""
    await begin(node)
    if why == "operating system":
        run_os(node, "1.0.1")
    else:
        touch(node, KUBELET, '{"cpuManagerPolicy": "static"}')
    node.paths.last_applied.write_bytes(b"{")
    start_again(node)
    async with node.controlling():
        await asyncio.sleep(60)
        touch(node, "/etc/motd", "wrong")
        await asyncio.sleep(700)
        assert (node.status_document()["phase"], node.read("/etc/motd"), node.read(KUBELET)) == ("applied", "old", "{}")


@pytest.mark.parametrize("lost", [False, True], ids=["torn", "lost with its second name"])
async def test_a_repair_whose_journal_is_damaged_is_made_again(node: OscAgent, lost: bool) -> None:
    """Contract 6.4: what a power cut leaves of a repair that was under way."""
    await be_killed_in_a_repair(node)
    content = node.paths.pending_changes.read_bytes()
    node.paths.pending_changes.unlink()
    if lost:
        for held in node.paths.generations.glob(f"{node.paths.pending_changes.name}*"):
            held.unlink()
    else:
        node.paths.pending_changes.write_bytes(content[: len(content) // 2])
    start_again(node)
    async with node.controlling():
        await asyncio.sleep(1300)
        assert (node.read("/etc/motd"), node.read(KUBELET)) == ("old", "{}")
        assert (node.status_document()["phase"], node.status_document()["items"]) == ("waitingForDrain", [])


async def test_a_repair_without_a_journal_before_it_is_followed_to_its_end(node: OscAgent) -> None:
    """Contract 6.4: the journal that the repair begins is the first; its job takes long."""
    await begin(node)
    for path in (node.paths.pending_changes, *node.paths.generations.glob(f"{node.paths.pending_changes.name}*")):
        path.unlink(missing_ok=True)
    start_again(node)
    publish(node, cpuManagerPolicy="static")
    async with node.controlling():
        await asyncio.sleep(10)
        node.host.gates["g"].clear()
        touch(node, "/etc/slow", "wrong")
        restarted_since(node, seconds=600, name="slow.service")
        await asyncio.sleep(60)
        assert [item["name"] for item in node.status_document()["items"]] == ["unit slow.service"]
        await node.host.open_gate("g")
        touch(node, "/etc/motd", "wrong")
        await asyncio.sleep(1300)
        assert (node.read("/etc/motd"), node.status_document()["items"]) == ("old", [])


async def test_what_cannot_be_kept_is_said(node: OscAgent) -> None:
    """Ours: an OSC that an update supersedes is there in part: nobody knows what to keep, and the status says so until the drain."""
    await begin(node)
    async with node.controlling():
        more = from_secret("/etc/t", "t")
        node.publish(files=[inline(KUBELET, "{}"), more, *FILES], units=UNITS, inPlaceUpdates=WANTED)
        await asyncio.sleep(60)
        assert [item["name"] for item in node.status_document()["items"]] == ["file /etc/t"]
        static = inline(KUBELET, '{"cpuManagerPolicy": "static"}')
        later = node.publish(files=[static, *FILES], units=UNITS, inPlaceUpdates=WANTED)
        await asyncio.sleep(60)
        assert [item["name"] for item in node.status_document()["items"]] == ["operating system config before"]
        drain(node)
        await asyncio.sleep(60)
        assert (node.applied(), node.status_document()["items"]) == (later, [])


async def test_what_the_journal_says_was_applied_before_may_be_older(
    node: OscAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 6.4: killed between the two writes of a commit, taken back, refused: the one that came last is not kept for the other."""
    files = [inline("/etc/motd", "one", 0o644), from_secret("/etc/s", "s")]
    node.put_secret("s", "key", "x")
    one = node.publish(files=files)
    async with node.connected():
        await node.reconcile()
        node.publish(files=[inline("/etc/motd", "two", 0o644)])
        write = Generations.write

        def be_killed_after(*arguments: Any, **more: Any) -> None:
            write(*arguments, **more)
            raise asyncio.CancelledError

        with monkeypatch.context() as killed:
            killed.setattr(Generations, "write", be_killed_after)
            with pytest.raises(asyncio.CancelledError):
                await node.reconcile()
    node.start_process()
    node.identity.start()
    node.api.remove(SECRETS, "s", "kube-system")
    async with node.controlling():
        node.publish(files=files)
        await asyncio.sleep(60)
        node.publish_bytes(b"kind: [")
        await asyncio.sleep(1300)
        node.put_secret("s", "key", "x")
        await asyncio.sleep(1300)
        node.publish(files=files)
        await asyncio.sleep(1300)
        assert (node.read("/etc/motd"), node.read("/etc/s"), node.applied()) == ("one", "x", one)


async def test_the_journal_tells_what_was_applied_where_last_applied_and_its_newest_copy_are_damaged(
    node: OscAgent,
) -> None:
    """Contract 6.13: the copy before is older, so what came since would look like an update that nobody drains the node for."""
    await begin(node)
    drain(node)
    publish(node, cpuManagerPolicy="static")
    async with node.connected():
        await node.reconcile()
        assert metadata(node)[0] == "successful"
    node.api.put(NODES, {**node.node(), "status": {"conditions": []}})
    content = node.paths.last_applied.read_bytes()
    for copy in node.paths.generations.iterdir():
        if copy.read_bytes() == content:
            copy.write_bytes(b"")
    node.paths.last_applied.write_bytes(b"")
    start_again(node)
    async with node.controlling():
        await asyncio.sleep(60)
        touch(node, "/etc/motd", "wrong")
        await asyncio.sleep(1300)
        assert (node.status_document()["phase"], node.read("/etc/motd")) == ("applied", "old")


async def test_a_manifest_that_is_no_pod_in_last_applied_hinders_no_wait(node: OscAgent) -> None:
    """Contract 6.12: another agent wrote it before it looked at its Pods."""
    await begin(node)
    document = json.loads(json.dumps(load_state(node.paths.last_applied.read_bytes())))
    document["spec"]["files"].append(inline("/etc/kubernetes/manifests/x.yaml", "kind: List"))
    node.paths.last_applied.write_text(json.dumps(document))
    start_again(node)
    publish(node, cpuManagerPolicy="static")
    async with node.controlling():
        await asyncio.sleep(60)
        touch(node, "/etc/motd", "wrong")
        await asyncio.sleep(1300)
        assert (node.status_document()["phase"], node.read("/etc/motd")) == ("waitingForDrain", "old")


async def test_what_was_said_of_a_wait_ends_with_it(node: OscAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: once the node is drained nothing waits, however long the apply takes."""
    await begin(node)
    async with node.controlling():
        node.publish(files=[inline(KUBELET, "{}"), from_secret("/etc/t", "t")], units=UNITS, inPlaceUpdates=WANTED)
        await asyncio.sleep(30)
        publish(node, cpuManagerPolicy="static")
        await asyncio.sleep(30)
        assert [item["name"] for item in node.status_document()["items"]] == ["operating system config before"]
        apply = node.applier.apply

        async def take_long(*arguments: Any, **more: Any) -> Outcome:
            await asyncio.sleep(250)
            return await apply(*arguments, **more)

        monkeypatch.setattr(node.applier, "apply", take_long)
        drain(node)
        await asyncio.sleep(100)
        await node.status.write()
        assert (node.status_document()["phase"], node.status_document()["items"]) == ("applying", [])
