"""A node agent's controllers against a real API server, as admin."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from agents.core.clock import SystemClock
from agents.core.shutdown import Shutdown
from agents.kube.client import Client
from agents.kube.events import EventRecorder
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.models import NODES, Node
from agents.kube.transport import HttpTransport
from agents.runtime.cache import Cache, Informer
from agents.runtime.cluster import Cluster
from agents.runtime.controller import Controller, Environment
from agents.runtime.health import InformerSync
from agents.runtime.manager import Manager
from agents.runtime.metrics import Metrics
from nodeagent.host.node_identity import NodeIdentity, hostname_selector
from tests.lab.api import Api
from tests.lab.controlplane import ControlPlane


@dataclass
class Agent:
    """What a controller under test needs, and the admin's view of the API server."""

    client: Client
    cache: Cache
    recorder: EventRecorder
    nodes: Informer[Node]
    identity: NodeIdentity
    hostname: str
    api: Api
    shutdown: Shutdown

    def create_node(self) -> dict[str, Any]:
        """Create our Node."""
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.hostname, "labels": {"kubernetes.io/hostname": self.hostname}},
        }
        return self.api.create("/api/v1/nodes", body)

    @asynccontextmanager
    async def running(self, *controllers: Controller) -> AsyncIterator[None]:
        """Run controllers as the process would."""
        environment = Environment(clock=SystemClock(), rng=Random(1), metrics=Metrics())
        cluster = Cluster(name="shoot", client=self.client, cache=self.cache, recorder=self.recorder)
        manager = Manager(
            environment=environment,
            shutdown=self.shutdown,
            informer_sync=InformerSync(clock=environment.clock),
            clusters=[cluster],
            controllers=controllers,
        )
        async with asyncio.TaskGroup() as group:
            task = group.create_task(manager.run())
            try:
                yield
            finally:
                self.shutdown.request("test has ended")
                await task


async def eventually(
    condition: Callable[[], Awaitable[Any]] | Callable[[], Any], *, what: str, seconds: float = 10.0
) -> Any:
    """Return the first true value of a condition; fails after a while with what was waited for."""
    last: Any = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                last = await asyncio.to_thread(condition)
                if last:
                    return last
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"waited {seconds} s for {what}; last seen: {last!r}")


@pytest.fixture
async def agent(integration_control_plane: ControlPlane) -> AsyncIterator[Agent]:
    """Clients and informers of a node with a name of its own; removed afterwards."""
    plane = integration_control_plane
    certificate, key = plane.issue_client_certificate("test-admin", ["system:masters"])
    access = ClusterAccess(
        server=plane.server,
        ca_data=plane.ca_pem,
        credentials=Credentials(client_certificate=certificate, client_key=key),
    )
    clock = SystemClock()
    client = Client(transport=HttpTransport(access, user_agent="test/1", clock=clock), rng=Random(1))
    cache = Cache(client=client, clock=clock, rng=Random(1))
    hostname = f"node-{uuid4().hex[:8]}"
    nodes = cache.informer(NODES, label_selector=hostname_selector(hostname).label)
    identity = NodeIdentity(hostname=hostname, nodes=nodes)
    identity.start()
    recorder = EventRecorder(client=client, instance=hostname, clock=clock)
    yield Agent(client, cache, recorder, nodes, identity, hostname, plane.admin, Shutdown())
    await client.close()
    plane.admin.delete(f"/api/v1/nodes/{hostname}")


def now() -> datetime:
    """Return the wall clock."""
    return datetime.now(UTC)
