"""One node after the other."""

import asyncio
import json
from datetime import timedelta
from random import Random

import pytest

from agents.kube.errors import Unavailable
from agents.kube.models import LEASES, NODES, format_micro_time
from agents.runtime.controller import Environment
from agents.runtime.metrics import Metrics
from nodeagent.controllers.operatingsystemconfig import controller, serial
from nodeagent.controllers.operatingsystemconfig.serial import LockLost
from tests.support.osc_agent import HOSTNAME, SECRET, SLEEP, OscAgent, from_image, inline
from tests.support.tasks import running


def spec(node: OscAgent) -> dict[str, object] | None:
    """Return what the shared Lease says, without what is empty; None if there is none."""
    lease = node.api.read(LEASES, SECRET, "kube-system")
    return None if lease is None else {key: value for key, value in lease["spec"].items() if value is not None}


def hold(node: OscAgent, holder: str | None, *, ago: timedelta = timedelta(0), duration: int | None = 600) -> None:
    """Let another node hold the Lease."""
    renewed = format_micro_time(node.clock.now() - ago)
    found = {"holderIdentity": holder, "leaseDurationSeconds": duration, "renewTime": renewed}
    node.api.put(LEASES, {"metadata": {"name": SECRET, "namespace": "kube-system"}, "spec": found})


async def test_the_lock_is_held_while_applying_and_free_at_the_end(node: OscAgent) -> None:
    """Contract 6.11: holder is the host name, 600 s, owner is the Secret; written by create and PUT, never by PATCH."""
    checksum = node.publish(files=[inline("/etc/a", "1")], serial=True)
    async with node.connected():
        await node.reconcile()
    assert (node.applied(), spec(node)) == (checksum, {})
    created, released = (
        json.loads(call.body or b"") for call in node.api.calls if "/leases" in call.path and call.body
    )
    assert created["spec"]["holderIdentity"] == HOSTNAME
    assert created["spec"]["leaseDurationSeconds"] == 600
    assert created["metadata"]["ownerReferences"][0]["kind"] == "Secret"
    assert released["spec"] == {}
    assert not [call for call in node.api.requests("PATCH") if "/leases" in call.path]


async def test_the_lock_is_free_after_a_repair_too(node: OscAgent) -> None:
    """Contract 6.11: a repair of drift takes it as any change does; the Secret is the version that was applied before."""
    node.publish(files=[inline("/etc/a", "1")], serial=True)
    renewal = serial.new_controller(node.lock)
    environment = Environment(clock=node.clock, rng=Random(1), metrics=Metrics())
    async with node.controlling(), running(lambda: renewal.run(environment)):
        await asyncio.sleep(10)
        del node.api.calls[:]
        (node.root / "etc/a").write_text("drifted")
        await asyncio.sleep(10)
        assert (node.read("/etc/a"), node.lock.held, spec(node)) == ("1", False, {})
    assert [call for call in node.api.calls if "/leases" in call.path and HOSTNAME.encode() in (call.body or b"")]


async def test_another_holder_is_waited_for(node: OscAgent) -> None:
    """Contract 6.11: nothing is changed meanwhile; when the Lease is free again it is our turn."""
    node.publish(files=[inline("/etc/a", "1")], serial=True)
    hold(node, "worker-2")
    async with node.connected():
        result = await node.reconcile()
        assert result.requeue_after == timedelta(seconds=5)
        assert node.read("/etc/a") is None
        assert not node.paths.pending_changes.exists()
        hold(node, None)
        await node.reconcile()
        assert node.read("/etc/a") == "1"


@pytest.mark.parametrize(
    ("ago", "duration", "ours"),
    [(600, 600, True), (599, 600, False), (0, -1, True), (0, None, True), (10000, 600, True)],
)
async def test_an_expired_lease_is_taken(node: OscAgent, ago: int, duration: int | None, ours: bool) -> None:
    """Contract 6.11: exactly now counts as expired, and what cannot be told as not renewed."""
    node.publish(files=[inline("/etc/a", "1")], serial=True)
    hold(node, "worker-2", ago=timedelta(seconds=ago), duration=duration)
    async with node.connected():
        await node.reconcile()
    assert (node.read("/etc/a") == "1") is ours


async def test_w18_without_a_node_nothing_is_locked(agent: OscAgent) -> None:
    """Contract 9 W18: on the very first boot the node name is unknown; the OSC is applied without the lock."""
    agent.publish(files=[inline("/etc/a", "1")], serial=True)
    async with agent.connected():
        await agent.reconcile()
    assert (agent.read("/etc/a"), spec(agent)) == ("1", None)


async def test_w18_a_lock_that_a_killed_process_left_is_released(node: OscAgent) -> None:
    """Contract 9 W18: killed between the Node's patch and the release: the next start gives the lock back."""
    checksum = node.publish(files=[inline("/etc/a", "1")], serial=True)
    async with node.connected():
        await node.reconcile()
        hold(node, HOSTNAME)
        node.start_process()
        await node.reconcile()
    assert (node.applied(), spec(node)) == (checksum, {})


async def test_w18_the_lock_is_renewed_in_the_background(node: OscAgent) -> None:
    """Contract 9 W18: every minute, however long the apply takes."""
    node.images.images["i"] = {"/f": b"x"}
    node.images.blocked = asyncio.Event()
    node.publish(files=[{"path": "/f", "content": {"imageRef": {"image": "i", "filePathInImage": "/f"}}}], serial=True)
    environment = Environment(clock=node.clock, rng=Random(1), metrics=Metrics())
    renewing = serial.new_controller(node.lock)
    async with node.controlling(), running(lambda: renewing.run(environment)):
        await asyncio.sleep(150)
        renewals = [call for call in node.api.requests("PUT") if "/leases" in call.path]
        assert len(renewals) == 3
        node.images.blocked.set()
        await asyncio.sleep(1)
        assert spec(node) == {}
        await asyncio.sleep(300)
        assert len([call for call in node.api.requests("PUT") if "/leases" in call.path]) == 4, (
            "renewed after the release"
        )


async def test_w18_a_lock_that_is_lost_during_an_apply_stops_it_before_its_next_step(
    node: OscAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 9 W18: taken by another node while an image is fetched: the unit that needs it is not started before our next turn."""
    monkeypatch.setattr(controller, "APPLY_SECONDS", 800.0)  # longer than the lock is good for without a renewal
    node.images.images["i"] = {"/f": b"x"}
    node.images.blocked = asyncio.Event()
    unit = {"name": "a.service", "command": "start", "content": SLEEP, "filePaths": ["/f"]}
    checksum = node.publish(files=[from_image("/f", "i", "/f")], units=[unit], serial=True)
    environment = Environment(clock=node.clock, rng=Random(1), metrics=Metrics())
    renewing = serial.new_controller(node.lock)
    async with node.controlling(), running(lambda: renewing.run(environment)):
        await asyncio.sleep(5)
        node.api.fail(Unavailable("away"), method="PUT", path="/apis/coordination.k8s.io")
        await asyncio.sleep(585)
        assert node.lock.held
        await asyncio.sleep(15)
        hold(node, "worker-2")
        node.images.blocked.set()
        await asyncio.sleep(60)
        assert node.read("/f") == "x", "it was under way"
        assert (node.calls("RestartUnit"), node.calls("StartUnit")) == (0, 0)
        assert node.applied() is None
        node.api.heal()
        hold(node, None)
        await asyncio.sleep(60)
        assert (node.applied(), spec(node)) == (checksum, {})
        assert node.calls("RestartUnit") + node.calls("StartUnit") == 1


async def test_w18_a_lost_lock_is_known_to_be_lost(node: OscAgent) -> None:
    """Contract 9 W18: after ten minutes without renewal somebody else may be at work."""
    secret = node.publish(files=[inline("/etc/a", "1")], serial=True)
    assert secret
    async with node.connected():
        found = node.secrets.list()[0]
        assert await node.lock.acquire(found) is None
        node.lock.check()
        node.clock.advance(600)
        with pytest.raises(LockLost):
            node.lock.check()
        hold(node, "worker-2")
        await node.reconcile()
        assert node.read("/etc/a") is None


async def test_w18_a_renewal_under_way_does_not_outlive_the_release(node: OscAgent) -> None:
    """Contract 9 W18: a lock that was given back is not ours, though a renewal was answered after that."""
    node.publish(files=[inline("/etc/a", "1")], serial=True)
    async with node.connected():
        secret = node.secrets.list()[0]
        for first_renewal in (True, False):
            assert await node.lock.acquire(secret) is None
            node.api.latency = 1.0
            async with asyncio.TaskGroup() as group:
                if first_renewal:
                    group.create_task(node.lock.renew())
                    await asyncio.sleep(1.5)  # it has read, and writes
                group.create_task(node.lock.release(secret))
                group.create_task(node.lock.renew())
            node.api.latency = 0.0
            assert not node.lock.held
            assert spec(node) == {}
            hold(node, "worker-2")
            assert await node.lock.acquire(secret) is not None
            hold(node, None)


async def test_a_failing_release_is_tried_again_although_all_is_applied(node: OscAgent) -> None:
    """Contract 6.11: the Node says applied; the pass fails until the lock is given back."""
    checksum = node.publish(files=[inline("/etc/a", "1")], serial=True)
    async with node.connected():
        node.api.fail(Unavailable("away"), times=1, method="PUT", path="/apis/coordination.k8s.io")
        with pytest.raises(Unavailable):
            await node.reconcile()
        assert node.applied() == checksum
        await node.reconcile()
        assert spec(node) == {}


async def test_an_osc_that_is_no_longer_serial_needs_no_lock(node: OscAgent) -> None:
    """Contract 6.11: the annotation decides, each time."""
    node.publish(files=[inline("/etc/a", "1")], serial=True)
    hold(node, "worker-2")
    async with node.connected():
        await node.reconcile()
        node.publish(files=[inline("/etc/a", "1")])
        await node.reconcile()
        assert node.read("/etc/a") == "1"
    assert node.api.read(NODES, HOSTNAME) is not None
