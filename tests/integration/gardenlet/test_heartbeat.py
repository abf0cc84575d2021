"""The heartbeat between a real garden and a real seed, with gardenlet's own permissions."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from random import Random

import pytest

from agents.core.clock import SystemClock
from agents.kube.client import Client
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.models import LEASES
from agents.kube.transport import HttpTransport
from agents.runtime.cache import Cache
from agents.runtime.health import PeriodicHealth
from agents.runtime.metrics import Metrics
from gardenlet.apis.seed import SEEDS
from gardenlet.heartbeat import NAMESPACE, Heartbeat, HeartbeatMetrics
from gardenlet.lease_conflict import LeaseConflict
from tests.lab.controlplane import ControlPlane
from tests.lab.garden.garden import Garden
from tests.lab.garden.identity import label_of
from tests.support.eventually import eventually
from tests.support.tasks import running

NAME = "beating"
COLLECTION = "/apis/core.gardener.cloud/v1beta1/seeds"


@dataclass(frozen=True)
class Beating:
    """A heartbeat and what it feeds."""

    gate: PeriodicHealth
    metrics: Metrics

    async def turns(self, *, healthy: bool) -> float:
        """Wait until `/healthz` would say so; returns the seconds that took."""
        started = time.monotonic()

        async def look() -> bool:
            return (await self.gate.check() is None) is healthy

        await eventually(look, what=f"healthy: {healthy}")
        return time.monotonic() - started

    async def beaten(self) -> bool:
        """Tell whether there was a beat."""
        return bool(self.metrics.registry.get_sample_value("gardenlet_heartbeat_total", {"result": "success"}))


def client_of(plane: ControlPlane, pair: tuple[bytes, bytes]) -> Client:
    """Return a client with a certificate."""
    credentials = Credentials(client_certificate=pair[0], client_key=pair[1])
    access = ClusterAccess(server=plane.server, ca_data=plane.ca_pem, credentials=credentials)
    return Client(transport=HttpTransport(access, user_agent="test/1", clock=SystemClock()), rng=Random(1))


@pytest.fixture
def registered(garden: Garden) -> Iterator[Garden]:
    """A garden with our Seed."""
    garden.api.ensure(
        COLLECTION, {"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Seed", "metadata": {"name": NAME}}
    )
    yield garden
    garden.api.delete(f"{COLLECTION}/{NAME}")


@pytest.fixture
async def beating(registered: Garden) -> AsyncIterator[Beating]:
    """The heartbeat of that Seed, as its gardenlet; a request that is refused fails the test."""
    denied = len(registered.denials())
    pair = registered.gardenlet_certificate(NAME)
    seed_pair = registered.seed.issue_client_certificate("admin", ["system:masters"])
    beats, seed, others = (
        client_of(registered.plane, pair),
        client_of(registered.seed, seed_pair),
        client_of(registered.plane, pair),
    )
    clock = SystemClock()
    cache = Cache(client=others, clock=clock, rng=Random(1))
    metrics = Metrics()
    gate = PeriodicHealth(clock=clock, deadline_seconds=20)
    heartbeat = Heartbeat(
        name=NAME,
        seeds=cache.informer(SEEDS, label_selector=f"{label_of(NAME)}=true"),
        garden=beats,
        seed=seed,
        writer=others,
        gate=gate,
        clock=clock,
        rng=Random(2),
        period=2.0,
        conflict=LeaseConflict(
            leases=cache.informer(LEASES, namespace=NAMESPACE, field_selector=f"metadata.name={NAME}"),
            tell=lambda _reason, _note: None,
            clock=clock,
            metrics=metrics,
        ),
        metrics=HeartbeatMetrics(metrics),
    )
    async with running(cache.run, heartbeat.run):
        yield Beating(gate, metrics)
    for one in (beats, seed, others):
        await one.close()
    assert [str(request) for request in registered.denials()[denied:]] == []


async def test_it_beats_with_the_permissions_of_a_gardenlet(beating: Beating, registered: Garden) -> None:
    """Contract core 6, 13.1.5: the Lease moves, GardenletReady is True, and nothing was refused."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{NAME}"
    seen: set[str] = set()

    async def moves() -> bool:
        lease = await asyncio.to_thread(registered.api.find, path)
        seen.update({lease["spec"]["renewTime"]} if lease else ())
        return len(seen) > 2

    async def ready() -> bool:
        seed = await asyncio.to_thread(registered.api.get, f"{COLLECTION}/{NAME}")
        conditions = (seed.get("status") or {}).get("conditions") or []
        return [(one["type"], one["status"]) for one in conditions] == [("GardenletReady", "True")]

    await eventually(moves, what="the Lease to move")
    await eventually(ready, what="GardenletReady")
    assert await beating.gate.check() is None


@pytest.mark.parametrize("side", ["garden", "seed"])
async def test_health_follows_both_api_servers(beating: Beating, registered: Garden, side: str) -> None:
    """Contract core 13.1.4: either API server killed: unhealthy within one beat, and well within one beat of its return."""
    plane = registered.plane if side == "garden" else registered.seed
    await eventually(beating.beaten, what="a beat")
    await asyncio.to_thread(plane.kill_apiserver)
    try:
        assert await beating.turns(healthy=False) < 6
    finally:
        await asyncio.to_thread(plane.start_apiserver)
    assert await beating.turns(healthy=True) < 6
