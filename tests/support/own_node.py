"""Our Node and this machine, for controllers that look after both: API server in memory, systemd in this process."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from agents.core.shutdown import Shutdown
from agents.kube.client import Client
from agents.kube.events import EventRecorder
from agents.kube.models import EVENTS, NODES
from agents.runtime.cache import Cache
from agents.runtime.cluster import Cluster
from agents.runtime.controller import Controller, Environment
from agents.runtime.metrics import Metrics
from nodeagent.host.node_events import NodeEvents
from nodeagent.host.node_identity import NodeIdentity, hostname_selector
from nodeagent.host.units_in_use import UnitsInUse
from nodeagent.paths import Paths
from systemd.manager import SystemdUnitManager
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.support.fake_systemd import FakeSystemd
from tests.support.tasks import running

NAME = "worker-1"


class OwnNode:
    """One machine and its Node."""

    def __init__(self, root: Path, host: FakeSystemd) -> None:
        self.root, self.host, self.clock, self.api = root, host, FakeClock(), FakeApi()
        self.paths = Paths(root=root)
        self.client = Client(transport=self.api, rng=Random(1))
        self.cache = Cache(client=self.client, clock=self.clock, rng=Random(1))
        self.nodes = self.cache.informer(NODES, label_selector=hostname_selector(NAME).label)
        self.recorder = EventRecorder(client=self.client, instance=NAME, clock=self.clock)
        self.identity = NodeIdentity(hostname=NAME, nodes=self.nodes)
        self.units = SystemdUnitManager(address=host.address)
        self.in_use = UnitsInUse()
        self.shutdown = Shutdown()

    def speaker(self, controller: str) -> NodeEvents:
        """Return where a controller says things."""
        return NodeEvents(recorder=self.recorder, node=lambda: self.identity.node, controller=controller)

    def register(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        conditions: Sequence[Mapping[str, str]] = (),
        addresses: Mapping[str, str] | None = None,
    ) -> None:
        """Create or replace our Node, as the kubelet does."""
        metadata = {
            "name": NAME,
            "labels": {"kubernetes.io/hostname": NAME, **(labels or {})},
            "annotations": dict(annotations or {}),
        }
        listed = [{"type": kind, "address": address} for kind, address in (addresses or {}).items()]
        status = {"conditions": [dict(condition) for condition in conditions], "addresses": listed}
        self.api.put(NODES, {"metadata": metadata, "status": status})

    def node(self) -> dict[str, Any]:
        """Return our Node as the API server has it."""
        node = self.api.read(NODES, NAME)
        assert node is not None
        return node

    def notes(self, reason: str) -> list[str]:
        """Return what events with a reason say, `Warning: ...`, in the order in which they were created."""
        return [f"{event['type']}: {event['note']}" for event in self.api.stored(EVENTS) if event["reason"] == reason]

    def restarts(self) -> int:
        """Return how often a unit was restarted."""
        return self.host.received.count("RestartUnit")

    @asynccontextmanager
    async def running(self, *controllers: Controller) -> AsyncIterator[None]:
        """Run controllers as the process would."""
        environment = Environment(clock=self.clock, rng=Random(1), metrics=Metrics())
        cluster = Cluster(name="shoot", client=self.client, cache=self.cache, recorder=self.recorder)
        for controller in controllers:
            self.cache.on_recovery(controller.retry_api_errors)
        async with running(cluster.run, self._send_bookmarks):
            await self.nodes.wait_synced()
            stop = self.identity.start()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(controller.run(environment)) for controller in controllers]
                await asyncio.sleep(0.5)
                yield
                for task in tasks:
                    task.cancel()
            stop()
        await self.units.close()

    async def _send_bookmarks(self) -> None:
        """Send one a minute, as the real API server does: a watch that is silent for longer counts as broken."""
        while True:
            await asyncio.sleep(60)
            self.api.bookmark()
