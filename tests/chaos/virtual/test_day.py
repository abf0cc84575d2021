"""A day of one agent, in virtual time: an API server, a systemd and a container runtime that misbehave at random, all the time.

Nothing that a process holds may grow with the hours: tasks, file descriptors, timers, and what the agent's own objects keep.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from random import Random
from typing import cast

import pytest

from agents.core.errors import RetriableError
from agents.core.generations import Generations
from agents.kube.kubeconfig import ClusterAccess, Credentials
from agents.kube.models import LEASES, NODES, SECRETS
from agents.kube.server_clock import ServerClock
from agents.pki.store import FileKubeconfigStore
from agents.runtime.controller import Controller, Environment
from agents.runtime.metrics import Metrics
from agents.runtime.source import ChannelSource
from nodeagent import status
from nodeagent.config import NodeAgentConfiguration, TokenController, TokenSync
from nodeagent.controllers import certificate, lease, token
from nodeagent.credentials import ClientFactory, CredentialsManager
from nodeagent.host.containerd import Containerd
from nodeagent.host.kubelet import Kubelet
from nodeagent.host.node_events import NodeEvents
from nodeagent.node_controllers import NodeParts, new_controllers
from tests.chaos.virtual.approval import approve
from tests.chaos.virtual.held import count, grown
from tests.chaos.virtual.weather import Weather
from tests.lab import pki
from tests.support.fake_systemd import FakeSystemd
from tests.support.osc_agent import APPLIED, HOSTNAME, SECRET, SLEEP, OscAgent, inline
from tests.support.tasks import running
from tests.unit.agents.pki.conftest import Approver

HOUR = 3600.0
LIFE = timedelta(hours=3)
"""Of a client certificate: it is renewed several times a day."""
LEASE = f"gardener-node-agent-{HOSTNAME}"
PATHS = (
    "",
    "/api/v1/nodes",
    "/apis/coordination.k8s.io",
    "/api/v1/namespaces/kube-system/secrets",
    "/apis/events.k8s.io",
    "/apis/certificates.k8s.io",
)
FILES = [f"/etc/day/{number}" for number in range(8)]


class Runtime:
    """A container runtime and a kubelet that may be down."""

    def __init__(self) -> None:
        self.down = False

    async def version(self) -> str:
        """Answer for containerd."""
        if self.down:
            raise RetriableError("containerd does not answer")
        return "1.7.0"

    async def healthy(self) -> None:
        """Answer for the kubelet."""
        if self.down:
            raise RetriableError("kubelet does not answer")

    def addresses(self) -> set[IPv4Address | IPv6Address]:
        """Answer for the kernel."""
        return set()


class Day:
    """The agent with all its controllers, and the world around it."""

    def __init__(self, root: Path, host: FakeSystemd, seed: int) -> None:
        self.node = OscAgent(root, host)
        self.host, self.api, self.rng = host, self.node.api, Random(seed)
        self.runtime = Runtime()
        self.approver = Approver(self.api)
        self.beats: list[float] = []
        self.certificates: set[datetime] = set()
        self.published = ""
        self.weather = Weather([self.api], PATHS, self.rng, [self._bus, self._runtime])
        self.controllers: list[Controller] = []
        self.metrics = Metrics()
        config = root / "config.yaml"
        config.write_text("{}")
        self.config_path = config
        for name in ("containerd.service", "kubelet.service"):
            host.write_unit(name, SLEEP)

    async def join(self) -> None:
        """Register the Node, and store a first certificate."""
        self.node.register_node()
        self.publish()
        key = pki.new_key()
        signed = self.approver.sign(pki.client_request(key, "me", []), start=self.node.clock.now(), lifetime=LIFE)
        credentials = Credentials(client_certificate=signed, client_key=pki.private_key_pem(key))
        bundle = pki.Authority.create("ca").certificate_pem
        store = FileKubeconfigStore(self.node.paths.kubeconfig, generations=Generations(self.node.paths.generations))
        self.node.paths.credentials.mkdir(parents=True)
        await store.save(ClusterAccess(server="https://api", ca_data=bundle, credentials=credentials))

    async def _expires(self, moment: datetime) -> None:
        self.certificates.add(moment)

    async def _renewed(self) -> None:
        self.beats.append(asyncio.get_running_loop().time())
        self.node.status.note_heartbeat()

    def _build(self) -> None:
        node = self.node
        config = NodeAgentConfiguration.model_validate(
            {
                "apiVersion": "nodeagent.config.gardener.cloud/v1alpha1",
                "kind": "NodeAgentConfiguration",
                "apiServer": {"server": "https://api"},
                "controllers": {"operatingSystemConfig": {"secretName": SECRET, "kubernetesVersion": "1.34.4"}},
            }
        )
        sync = TokenController(
            sync_configs=(TokenSync(secret_name="gardener-valitail", path=str(node.root / "valitail-token")),),
            sync_period=timedelta(minutes=7),
        )
        parts = NodeParts(
            config=config,
            config_path=self.config_path,
            client=node.client,
            recorder=node.recorder,
            nodes=node.nodes,
            identity=node.identity,
            units=node.units,
            in_use=node.in_use,
            budget=node.budget,
            containerd=cast("Containerd", self.runtime),
            kubelet=cast("Kubelet", self.runtime),
            shutdown=node.shutdown,
            restart_self=None,
            clock=node.clock,
            paths=node.paths,
        )
        # The hostname is this host's own; whether it changes is not what this is about.
        self.controllers = [one for one in new_controllers(parts) if one.name != "hostname-check"]
        self.controllers += [
            token.new_controller(client=node.client, config=sync, resync=ChannelSource()),
            lease.new_controller(
                client=node.client, nodes=node.nodes, identity=node.identity, clock=node.clock, renewed=self._renewed
            ),
            status.new_controller(node.status),
            self._certificate(config),
        ]

    def _certificate(self, config: NodeAgentConfiguration) -> Controller:
        node, clock = self.node, ServerClock(clock=self.node.clock, name="shoot")
        clients = ClientFactory(clock=clock, rng=Random(1), observe=lambda _method, _code, _seconds: None)
        credentials = CredentialsManager(
            config=config, paths=node.paths, machine_name="m", clients=clients, clock=node.clock
        )
        speaker = NodeEvents(recorder=node.recorder, node=lambda: node.identity.node, controller="certificate")
        return certificate.new_controller(
            credentials=credentials,
            client=node.client,
            clock=node.clock,
            rng=Random(1),
            events=speaker,
            expires=self._expires,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run everything."""
        self._build()
        environment = Environment(clock=self.node.clock, rng=Random(1), metrics=self.metrics)
        for controller in self.controllers:
            self.node.cache.on_recovery(controller.retry_api_errors)
        bodies = [lambda one=one: one.run(environment) for one in self.controllers]
        async with self.node.controlling(), running(*bodies):
            yield

    # The world.

    async def change(self) -> None:
        """Publish another OSC, or change the token or the Node, every now and then."""
        while True:
            await asyncio.sleep(self.rng.uniform(300, 3000))
            self.publish()
            self.api.put(
                SECRETS,
                {"metadata": {"name": "gardener-valitail", "namespace": "kube-system"}, "data": {"token": "dG9rZW4="}},
            )
            if self.rng.random() < 0.3:
                self._annotate("worker.gardener.cloud/restart-systemd-services", "day-0,kubelet")
            if self.rng.random() < 0.3 and (path := self.node.root / self.rng.choice(FILES)[1:]).exists():
                path.write_text("drifted")

    async def approve(self) -> None:
        """Approve requests for certificates."""
        await approve(self.approver, clock=self.node.clock, lifetime=LIFE)

    async def forget(self) -> None:
        """Keep the fakes themselves from growing."""
        while True:
            await asyncio.sleep(600)
            self.api.forget()
            self.api.switches.clear()
            self.host.received.clear()
            self.host.bodies.clear()
            self.node.removed.clear()
            self.node.drifted.clear()
            del self.beats[:-1000]

    def publish(self, *, share: float = 0.6) -> None:
        """Publish an OSC with a share of all files and units."""
        text = str(self.rng.random())
        files = [inline(path, text) for path in FILES if self.rng.random() < share]
        units = [
            {
                "name": f"day-{number}.service",
                "content": SLEEP,
                "dropIns": [{"name": "a.conf", "content": f"# {text}\n"}],
            }
            for number in range(3)
            if self.rng.random() < share
        ]
        self.published = self.node.publish(files=files, units=units)

    def _annotate(self, key: str, value: str) -> None:
        node = self.api.read(NODES, HOSTNAME)
        assert node is not None
        annotations = {**node["metadata"].get("annotations", {}), key: value}
        self.api.put(NODES, {**node, "metadata": {**node["metadata"], "annotations": annotations}})

    async def _bus(self, seconds: float) -> None:
        await self.host.stop_bus()
        try:
            await asyncio.sleep(seconds)
        finally:
            await self.host.start()

    async def _runtime(self, seconds: float) -> None:
        self.runtime.down = True
        try:
            await asyncio.sleep(seconds)
        finally:
            self.runtime.down = False

    # What is measured.

    async def measure(self) -> dict[str, int]:
        """Count what the process holds, at a moment without faults and always with the same things in the world."""
        async with running(self.approve):  # no request is to be under way
            for seconds in (500, 700):
                # The second time also for its event: what is remembered of old ones is dropped with a newer one.
                self.publish(share=1)
                await asyncio.sleep(seconds)
        self.api.forget()
        return count(("agents", "nodeagent", "osc", "systemd"))


@pytest.fixture
async def day(tmp_path: Path) -> AsyncIterator[Day]:
    """A machine with a registered Node."""
    seed = int(os.environ.get("SEED", "1"))
    host = FakeSystemd(tmp_path)
    await host.start()
    found = Day(tmp_path, host, seed)
    await found.join()
    yield found
    await host.stop()


async def test_nothing_grows_over_a_day(day: Day) -> None:
    """Contract 4.8, 7.9, 9 W25, W28: 24 hours of random errors: no task, descriptor, timer or key count grows; then all is well."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with day.running():
        counted: list[dict[str, int]] = []
        for hour in (4, 14, 24):
            async with running(day.weather.run, day.change, day.approve, day.forget):
                await asyncio.sleep(start + hour * HOUR - loop.time())
            counted.append(await day.measure())
        day.publish()
        await asyncio.sleep(60)
        assert day.node.applied() == day.published
        assert loop.time() - day.beats[-1] <= 11
    print(f"faults: {dict(day.weather.faults)}")
    assert grown(counted) == {}
    assert sum(day.weather.faults.values()) > 50
    assert len(day.certificates) >= 6
    assert day.api.read(LEASES, LEASE, "kube-system") is not None
    node = day.api.read(NODES, HOSTNAME)
    assert node is not None
    assert node["metadata"]["annotations"][APPLIED] == day.published
