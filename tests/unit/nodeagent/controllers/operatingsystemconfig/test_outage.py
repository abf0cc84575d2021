"""The OSC controller with its informers while the API server misbehaves: no hot loop, nothing touched, alone again after."""

import asyncio
from datetime import timedelta

import pytest

from agents.kube.errors import (
    ApiError,
    Forbidden,
    InvalidResponse,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from agents.kube.models import NODES, SECRETS
from tests.support.osc_agent import HOSTNAME, SLEEP, OscAgent, inline
from tests.support.tasks import running

UNIT = {"name": "a.service", "content": SLEEP, "filePaths": ["/etc/a"]}
FAULTS = {
    "401": Unauthorized("no", status=401),
    "403": Forbidden("no", status=403),
    "429": TooManyRequests("slow", status=429, after=timedelta(seconds=3)),
    "500": ServerError("down", status=500),
    "invalid": InvalidResponse("not json"),
    "reset": Unavailable("connection reset"),
}


@pytest.mark.parametrize("error", FAULTS.values(), ids=FAULTS)
async def test_an_outage_harms_nothing_and_ends_alone(node: OscAgent, error: ApiError) -> None:
    """Contract 4.8, 6.10: ten minutes of every request failing: few requests, no unit touched; then the new OSC is applied."""
    node.publish(files=[inline("/etc/a", "one")], units=[UNIT])
    async with node.controlling():
        await asyncio.sleep(5)
        assert node.applied() is not None
        received = len(node.host.jobs)
        node.api.fail(error)
        for stream in list(node.api.streams):
            stream.fail(Unavailable("connection broke"))
        before = len(node.api.calls)
        checksum = node.publish(files=[inline("/etc/a", "two")], units=[UNIT])
        await asyncio.sleep(600)
        assert len(node.api.calls) - before < 2 * 600 / 3 + 20
        assert (len(node.host.jobs), node.read("/etc/a")) == (received, "one")
        assert node.restart_reason() is None
        node.api.heal()
        await asyncio.sleep(65)
        assert (node.applied(), node.read("/etc/a")) == (checksum, "two")


async def test_a_deleted_node_is_waited_for_and_reported_to_again(node: OscAgent) -> None:
    """Contract 6.2, 6.9: the Node is deleted and registered again: checksum and labels come back without a second job."""
    checksum = node.publish(units=[{"name": "a.service", "content": SLEEP}])
    async with node.controlling():
        await asyncio.sleep(5)
        jobs = node.calls("RestartUnit")
        node.api.remove(NODES, HOSTNAME)
        await asyncio.sleep(60)
        node.register_node()
        await asyncio.sleep(60)
        assert node.applied() == checksum
        assert "node-role.kubernetes.io/worker" in node.node()["metadata"]["labels"]
        assert node.calls("RestartUnit") == jobs


async def test_a_secret_that_vanished_removes_nothing(node: OscAgent) -> None:
    """Contract 4.8, 6.2: the OSC Secret is gone, from the list even: what was applied stays."""
    node.publish(files=[inline("/etc/a", "one")], units=[{"name": "a.service", "content": SLEEP}])
    async with node.controlling():
        await asyncio.sleep(5)
        node.api.remove(SECRETS, "gardener-node-agent-pool", "kube-system")
        await asyncio.sleep(3600)
        assert node.read("/etc/a") == "one"
        assert node.host.units["a.service"].active_state == "active"
        assert node.calls("StopUnit") == 0


async def test_an_intact_machine_is_not_repaired(node: OscAgent) -> None:
    """Contract 9 W14: at the sync period a machine that is as it should be is left alone."""
    node.publish(files=[inline("/etc/of-no-machine", "one")])
    async with node.controlling():
        await asyncio.sleep(5)
        before = len(node.host.jobs), len(node.api.requests("PATCH"))
        await asyncio.sleep(1300)
        assert (len(node.host.jobs), len(node.api.requests("PATCH"))) == before


async def test_a_drift_that_comes_back_is_no_hot_loop_in_an_outage(node: OscAgent) -> None:
    """Contract 6.10: somebody changes a file again and again while the Node cannot be patched: the back-off still grows."""
    node.publish(files=[inline("/etc/of-no-machine", "one")])

    async def interfere() -> None:
        while True:
            (node.root / "etc/of-no-machine").write_text("other")
            await asyncio.sleep(0.01)

    async with node.controlling():
        await asyncio.sleep(5)
        node.api.fail(ServerError("down", status=500), method="PATCH", path="/api/v1/nodes/")
        await asyncio.sleep(590)
        before = len(node.api.calls)
        async with running(interfere):
            await asyncio.sleep(12)
            assert len(node.api.calls) - before < 30
