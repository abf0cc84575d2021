"""A day of one gardenlet, in virtual time, between a seed and a garden that misbehave at random, all the time.

Every controller and the heartbeat run as `app.py` wires them; only connections, election and health server are left out.
"""

import asyncio
import base64
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
import structlog

from agents.core.shutdown import Shutdown
from agents.kube import kubeconfig
from agents.kube.client import Client
from agents.kube.events import EventRecorder
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.models import LEASES, SECRETS
from agents.kube.server_clock import ServerClock
from agents.runtime.cache import Cache
from agents.runtime.cluster import Cluster
from agents.runtime.controller import Environment
from agents.runtime.health import InformerSync
from agents.runtime.manager import Manager
from agents.runtime.metrics import Metrics
from gardenlet.apis.core_objects import CONFIG_MAPS
from gardenlet.apis.networking import ENDPOINTS, GARDENS, NAMESPACES, NETWORK_POLICIES
from gardenlet.apis.resources import MANAGED_RESOURCES
from gardenlet.apis.seed import SEEDS
from gardenlet.bootstrap.clients import GardenClients
from gardenlet.bootstrap.garden_kubeconfig import GardenKubeconfig, Origin
from gardenlet.config import GardenletConfiguration
from gardenlet.controllers.networkpolicy import api_server
from gardenlet.handover import HandOver
from gardenlet.heartbeat import NAMESPACE as LEASE_NAMESPACE
from gardenlet.wiring import Controllers, GardenSide, Process, SeedSide
from tests.chaos.virtual.approval import approve
from tests.chaos.virtual.held import count, grown
from tests.chaos.virtual.weather import Weather
from tests.lab import pki
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.support.tasks import running
from tests.unit.agents.pki.conftest import Approver

HOUR = 3600.0
NAME = "one"
LIFE = timedelta(hours=6)
SHOOTS = 12
PATHS = (
    "",
    "/apis/core.gardener.cloud",
    "/apis/coordination.k8s.io",
    "/api/v1/namespaces/garden/secrets",
    "/apis/certificates.k8s.io",
    "/apis/networking.k8s.io",
    "/apis/resources.gardener.cloud",
    "/healthz",
)
CONFIGURATION: dict[str, Any] = {
    "apiVersion": "gardenlet.config.gardener.cloud/v1alpha1",
    "kind": "GardenletConfiguration",
    "gardenClientConnection": {"kubeconfigSecret": {"name": "kubeconfig", "namespace": "garden"}},
    # Ten times slower than usual: forty thousand beats would tell nothing else.
    "controllers": {"seed": {"leaseResyncSeconds": 20}},
    "seedConfig": {"metadata": {"name": NAME}, "spec": {"provider": {"type": "local", "region": "r"}, "networks": {}}},
}


class Day:
    """A gardenlet and the world around it."""

    def __init__(self, seed: int) -> None:
        self.rng, self.clock = Random(seed), FakeClock()
        self.seed, self.garden = FakeApi(), FakeApi()
        self.weather = Weather([self.seed, self.garden], PATHS, self.rng)
        self.authority, self.approver = pki.Authority.create("ca"), Approver(self.garden)
        # What both API servers and their signers take for the time; only the gardenlet's own clock jumps.
        self.true = FakeClock()
        self.garden_clock = ServerClock(clock=self.clock, name="garden")
        self.garden.tell_time(self.garden_clock.note, self.true)
        self.shutdown, self.metrics, self.sync = Shutdown(), Metrics(), InformerSync(clock=self.clock)
        self.config = GardenletConfiguration.model_validate(CONFIGURATION)
        self._fill()

    def _fill(self) -> None:
        self.seed.serve("/version", b'{"gitVersion": "v1.34.4"}')
        self.seed.serve("/healthz", b"ok")
        self.seed.put(NAMESPACES, {"metadata": {"name": "kube-system", "uid": "u"}})
        self.seed.put(ENDPOINTS, {"metadata": {"name": "kubernetes", "namespace": "default"}, "subsets": []})
        labels = {f"name.seed.gardener.cloud/{NAME}": "true"}
        self.garden.put(SEEDS, {"metadata": {"name": NAME, "generation": 1, "labels": labels, "uid": "s"}, "spec": {}})
        self.garden.put(CONFIG_MAPS, {"metadata": {"name": "cluster-identity", "namespace": "kube-system"}})
        key = pki.new_key()
        request = pki.client_request(key, "gardener.cloud:system:seed:one", ["gardener.cloud:system:seeds"])
        credentials = Credentials(
            client_certificate=self.approver.sign(request, start=self.true.now(), lifetime=LIFE),
            client_key=pki.private_key_pem(key),
        )
        access = ClusterAccess(server="https://garden", ca_data=self.authority.certificate_pem, credentials=credentials)
        data = {"kubeconfig": base64.b64encode(kubeconfig.render(access)).decode()}
        self.seed.put(SECRETS, {"metadata": {"name": "kubeconfig", "namespace": "garden"}, "data": data})

    def _cluster(self, name: str, api: FakeApi) -> Cluster:
        client = Client(transport=api, rng=Random(1))
        return Cluster(
            name=name,
            client=client,
            cache=Cache(client=client, clock=self.clock, rng=Random(2)),
            recorder=EventRecorder(client=client, instance="day", clock=self.clock),
            vital=False,
        )

    def _wire(self, manager: Manager, seed: Cluster, extensions: Cluster, garden: Cluster) -> Controllers:
        connection, template = self.config.garden_client_connection, self.config.seed_config
        assert connection.kubeconfig_secret is not None
        assert template is not None
        beats = Client(transport=self.garden, rng=Random(3))
        kubeconfigs = GardenKubeconfig(
            connection=connection,
            seed_name=NAME,
            seed=seed.client,
            new_client=lambda _access: garden.client,
            clock=self.garden_clock,
            rng=Random(5),
        )
        return Controllers(
            Process(
                config=self.config,
                template=template,
                environment={},
                hostname="day",
                manager=manager,
                metrics=self.metrics,
                shutdown=self.shutdown,
                clock=self.clock,
                garden_clock=self.garden_clock,
                rng=Random(6),
            ),
            SeedSide(
                access=ClusterAccess(server="https://10.0.0.1"),
                cluster=seed,
                extensions=extensions,
                heartbeat=Client(transport=self.seed, rng=Random(7)),
                secrets=seed.cache.informer(SECRETS, namespace="garden", field_selector="metadata.name=kubeconfig"),
            ),
            GardenSide(
                cluster=garden,
                beats=beats,
                clients=GardenClients(ClusterAccess(server="https://garden"), garden.client, beats),
                seeds=garden.cache.informer(SEEDS, label_selector=f"name.seed.gardener.cloud/{NAME}=true"),
                kubeconfig=kubeconfigs,
                origin=Origin.STORED,
            ),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run what a leader runs after its start."""
        seed, extensions, garden = (
            self._cluster(name, api)
            for name, api in (("seed", self.seed), ("extensions", self.seed), ("garden", self.garden))
        )
        manager = Manager(
            environment=Environment(clock=self.clock, rng=Random(4), metrics=self.metrics),
            shutdown=self.shutdown,
            informer_sync=self.sync,
            clusters=[seed, extensions, garden],
        )
        controllers = self._wire(manager, seed, extensions, garden)
        controllers.add_heartbeat()
        controllers.add_seed_controllers()
        hand_over = HandOver(
            seed=seed.client,
            start=lambda: (
                *controllers.add_network_policies(api_server.PLAIN),
                *controllers.add_eviction_requirements(),
            ),
            rng=Random(8),
        )
        manager.add_task("whose seed this is", hand_over.run)
        controllers.add_token_requestor()
        controllers.add_identity_tokens()
        controllers.add_credentials()
        async with asyncio.TaskGroup() as group:
            group.create_task(manager.run())
            yield
            self.shutdown.request("the day is over")

    async def live(self) -> None:
        """Have namespaces and components come, change and go, the seed become a garden for a while, and forget the past."""
        while True:
            await asyncio.sleep(self.rng.uniform(300, 1500))
            number = self.rng.randrange(SHOOTS)
            if self.rng.random() < 0.3 and self.seed.read(NAMESPACES, f"shoot--p--{number}") is not None:
                self.seed.remove(NAMESPACES, f"shoot--p--{number}")
                for policy in self.seed.stored(NETWORK_POLICIES):
                    if policy["metadata"]["namespace"] == f"shoot--p--{number}":
                        self.seed.remove(NETWORK_POLICIES, policy["metadata"]["name"], f"shoot--p--{number}")
            else:
                self._namespace(number)
            self._component(number % 4)
            if self.rng.random() < 0.1:
                self.seed.put(GARDENS, {"metadata": {"name": "g"}})
            elif self.seed.read(GARDENS, "g") is not None:
                self.seed.remove(GARDENS, "g")

    def _namespace(self, number: int) -> None:
        labels = {"gardener.cloud/role": "shoot", "changed": str(self.rng.random())}
        self.seed.put(NAMESPACES, {"metadata": {"name": f"shoot--p--{number}", "labels": labels}})

    def _component(self, number: int) -> None:
        status = self.rng.choice(("True", "False"))
        conditions = [{"type": f"Resources{kind}", "status": status} for kind in ("Applied", "Healthy", "Progressing")]
        metadata = {"name": f"component-{number}", "namespace": "garden", "generation": 1}
        body = {"observedGeneration": 1, "conditions": conditions}
        self.seed.put(MANAGED_RESOURCES, {"metadata": metadata, "spec": {"class": "seed"}, "status": body})

    async def approve(self) -> None:
        """Approve requests for certificates."""
        await approve(self.approver, clock=self.true, lifetime=LIFE)

    async def forget(self) -> None:
        """Keep the fakes themselves from growing."""
        while True:
            await asyncio.sleep(600)
            for api in (self.seed, self.garden):
                api.forget()
                api.switches.clear()

    async def measure(self) -> dict[str, int]:
        """Count what the process holds, at a moment without faults and always with the same things in the world."""
        for api in (self.seed, self.garden):
            api.heal()
        if self.seed.read(GARDENS, "g") is not None:
            self.seed.remove(GARDENS, "g")
        for number in range(SHOOTS):
            self._namespace(number)
        for number in range(4):
            self._component(number)
        async with running(self.approve):  # no request is to be under way
            await asyncio.sleep(700)
        for api in (self.seed, self.garden):
            api.forget()
        return count(("agents", "gardenlet"))

    def rotations(self) -> float:
        """Return how often the certificate was renewed."""
        name, labels = "gardenlet_certificate_rotation_total", {"result": "success"}
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def renewed(self) -> datetime:
        """Return when the Lease was renewed last."""
        lease = self.garden.read(LEASES, NAME, LEASE_NAMESPACE)
        assert lease is not None
        return datetime.fromisoformat(lease["spec"]["renewTime"])


async def test_nothing_grows_over_a_day_of_gardenlet() -> None:
    """Contract core 13.1: 24 hours of random errors: no task, descriptor, timer or key count grows; then all is well."""
    day, loop = Day(int(os.environ.get("SEED", "1"))), asyncio.get_running_loop()
    start = loop.time()
    async with day.running():
        counted: list[dict[str, int]] = []
        for hour in (4, 14, 24):
            async with running(day.weather.run, day.live, day.approve, day.forget):
                await asyncio.sleep(start + hour * HOUR - loop.time())
            counted.append(await day.measure())
        assert day.true.now() - day.renewed() <= timedelta(seconds=25)
    print(f"faults: {dict(day.weather.faults)}")
    assert grown(counted) == {}
    assert sum(day.weather.faults.values()) > 50
    assert not day.shutdown.failed
    assert day.rotations() >= 3
    seed = day.garden.read(SEEDS, NAME)
    assert seed is not None
    assert {item["type"]: item["status"] for item in seed["status"]["conditions"]}["GardenletReady"] == "True"


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
async def test_a_clock_that_jumps_by_an_hour(jump: float, capsys: pytest.CaptureFixture[str]) -> None:
    """Contract core 13.1: renewTime follows the garden's time, no certificate is renewed by a wrong clock, no beat comes early or late."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    day, seen = Day(1), list[datetime]()
    async with day.running(), running(day.approve):
        await asyncio.sleep(600)
        day.clock.jump(jump)
        for _ in range(60):
            await asyncio.sleep(60)
            assert abs(day.true.now() - day.renewed()) <= timedelta(seconds=25)
            seen.append(day.renewed())
        beats = day.metrics.registry.get_sample_value("gardenlet_heartbeat_total", {"result": "success"})
        assert beats is not None
        assert 4200 / 22 - 2 <= beats <= 4200 / 20 + 2
        assert day.rotations() == 0
        # 70 to 90 % of six hours, and no sooner and no later than that.
        await asyncio.sleep(LIFE.total_seconds() * 0.7 - 4200 - 60)
        assert day.rotations() == 0
        await asyncio.sleep(LIFE.total_seconds() * 0.2 + 300)
        assert day.rotations() == 1
    assert len(set(seen)) == len(seen)
    assert capsys.readouterr().out.count("differs") == 1
