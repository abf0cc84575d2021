"""The heartbeat, against a real API server."""

import asyncio
from datetime import datetime
from typing import Any

from agents.core.clock import SystemClock
from agents.runtime.reconcile import Request
from nodeagent.controllers import lease
from tests.integration.nodeagent.conftest import Agent, eventually, now
from tests.lab.controlplane import ControlPlane

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


async def nothing() -> None:
    """Do nothing."""


def path(agent: Agent) -> str:
    """Return the path of the agent's Lease."""
    return f"{LEASES}/gardener-node-agent-{agent.hostname}"


def renewed_at(found: dict[str, Any] | None) -> datetime:
    """Return a Lease's renewTime."""
    assert found is not None
    return datetime.fromisoformat(found["spec"]["renewTime"])


async def test_lease_is_created_whole_when_the_node_appears(agent: Agent) -> None:
    """Contract 7.1: owner, holder, 40 s and renewTime are set, acquireTime is not; nothing exists before the Node does."""
    controller = lease.new_controller(
        client=agent.client, nodes=agent.nodes, identity=agent.identity, clock=SystemClock(), renewed=nothing
    )
    async with agent.running(controller):
        await agent.cache.wait_synced()
        assert agent.api.find(path(agent)) is None
        node = await asyncio.to_thread(agent.create_node)
        found = await eventually(lambda: agent.api.find(path(agent)), what="Lease")
    name = f"gardener-node-agent-{agent.hostname}"
    assert found["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "name": agent.hostname,
            "uid": node["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert abs((now() - renewed_at(found)).total_seconds()) < 10
    found["spec"].pop("renewTime")
    assert found["spec"] == {"holderIdentity": name, "leaseDurationSeconds": 40}


async def test_lease_survives_conflicts_deletion_and_a_new_node(agent: Agent) -> None:
    """Contract 7.1: a Lease that somebody changed, removed, or whose Node is new, is renewed at the next beat."""
    reconciler = lease.LeaseReconciler(client=agent.client, nodes=agent.nodes, clock=SystemClock(), renewed=nothing)
    async with agent.running():
        await asyncio.to_thread(agent.create_node)
        request = Request("", agent.hostname)
        await eventually(lambda: agent.nodes.get(request), what="Node in the cache")
        assert (await reconciler.reconcile(request)).requeue_after == lease.PERIOD
        first = renewed_at(agent.api.get(path(agent)))
        agent.api.patch(
            path(agent), {"spec": {"holderIdentity": "somebody", "acquireTime": "2026-01-01T00:00:00.000000Z"}}
        )
        await reconciler.reconcile(request)
        found = agent.api.get(path(agent))
        assert found["spec"]["holderIdentity"] == f"gardener-node-agent-{agent.hostname}"
        assert "acquireTime" not in found["spec"]
        assert renewed_at(found) > first
        agent.api.delete(path(agent))
        await reconciler.reconcile(request)
        before = agent.api.get(path(agent))["metadata"]["ownerReferences"][0]["uid"]
        agent.api.delete(f"/api/v1/nodes/{agent.hostname}")
        await asyncio.to_thread(agent.create_node)
        await eventually(lambda: (node := agent.nodes.get(request)) and node.metadata.uid != before, what="new Node")
        await reconciler.reconcile(request)
        assert agent.api.get(path(agent))["metadata"]["ownerReferences"][0]["uid"] != before


async def test_first_connection_error_is_repeated_at_once(
    agent: Agent, integration_control_plane: ControlPlane
) -> None:
    """Heartbeat: after the first connection error the renewal is repeated on a fresh connection and succeeds in the same pass."""
    reconciler = lease.LeaseReconciler(client=agent.client, nodes=agent.nodes, clock=SystemClock(), renewed=nothing)
    request = Request("", agent.hostname)
    async with agent.running():
        await asyncio.to_thread(agent.create_node)
        await eventually(lambda: agent.nodes.get(request), what="Node in the cache")
        await reconciler.reconcile(request)
        first = renewed_at(agent.api.get(path(agent)))
        await asyncio.to_thread(integration_control_plane.stop_apiserver)
        await asyncio.to_thread(integration_control_plane.start_apiserver)
        await reconciler.reconcile(request)
        assert renewed_at(agent.api.get(path(agent))) > first
