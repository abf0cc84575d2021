"""The gardenlet process: builds its parts and puts them together; with `wiring.py` the only place that knows all classes.

::

    servers -> seed -> leader election -> networks -> garden kubeconfig -> garden -> version -> Seed -> namespace -> controllers

Source: gardener cmd/gardenlet/app/app.go (contract core 1.2).
"""

import dataclasses
import socket
from collections.abc import Mapping
from random import Random, SystemRandom

from agents.core.clock import Clock, SystemClock
from agents.core.errors import RetriableError
from agents.core.logging import get_logger
from agents.core.memory import MemoryRelease
from agents.core.shutdown import Shutdown
from agents.kube.client import Client
from agents.kube.events import EventRecorder
from agents.kube.kubeconfig import ClusterAccess
from agents.kube.models import SECRETS
from agents.kube.ratelimit import RateLimiter
from agents.kube.server_clock import ServerClock
from agents.kube.transport import HttpTransport, ignore_date
from agents.kube.warnings import Warnings
from agents.runtime.cache import Cache
from agents.runtime.cluster import Cluster
from agents.runtime.controller import Environment
from agents.runtime.election import LeaderElector, new_identity
from agents.runtime.health import Checks, InformerSync, LoopLag, PeriodicHealth
from agents.runtime.manager import Manager
from agents.runtime.metrics import Metrics
from agents.runtime.profiling import profiling_routes
from agents.runtime.reconcile import Request
from agents.runtime.server import health_server, metrics_server
from gardenlet import features
from gardenlet.apis.seed import SEEDS
from gardenlet.bootstrap import default_domains, http_proxy_port, self_upgrade
from gardenlet.bootstrap.clients import GardenClients
from gardenlet.bootstrap.garden_kubeconfig import GardenKubeconfig, Origin
from gardenlet.bootstrap.interrupted_shoots import abort_interrupted
from gardenlet.bootstrap.register import check_namespace, register
from gardenlet.bootstrap.seed_networks import check_networks
from gardenlet.bootstrap.self_hosted import check_self_hosted
from gardenlet.bootstrap.version_skew import check_version_skew
from gardenlet.config import ClientConnection, GardenletConfiguration, SeedTemplate
from gardenlet.controllers.networkpolicy import api_server
from gardenlet.handover import HandOver
from gardenlet.options import Options
from gardenlet.startup import Startup
from gardenlet.version import GARDENER_VERSION, VERSION
from gardenlet.wiring import Controllers, GardenSide, Process, SeedSide

log = get_logger(__name__)

USER_AGENT = f"gardenlet/{GARDENER_VERSION}"


class SeedNotSeen(RetriableError):
    """The garden does not show us our own Seed yet."""


async def run(
    options: Options, config: GardenletConfiguration, access: ClusterAccess, environment: Mapping[str, str]
) -> int:
    """Run until something ends the process; returns the exit code."""
    return await App(options, config, access, environment).run()


class App:
    """One gardenlet.

    Args:
        options: command line and environment.
        config: validated.
        access: the seed.
        environment: of the process.
    """

    def __init__(
        self, options: Options, config: GardenletConfiguration, access: ClusterAccess, environment: Mapping[str, str]
    ) -> None:
        self._config = config
        self._environment = environment
        self._namespace = options.namespace or "garden"
        if config.seed_config is None:
            raise ValueError("a validated configuration has a seedConfig")
        self._template: SeedTemplate = config.seed_config
        self._name = self._template.metadata.name
        self._clock: Clock = SystemClock()
        self._garden_clock = ServerClock(clock=self._clock, name="garden")
        self._rng: Random = SystemRandom()
        self._shutdown, self._metrics = Shutdown(), Metrics()
        self._hostname = socket.gethostname()
        self._startup = Startup(clock=self._clock, rng=self._rng)
        self._sync = InformerSync(clock=self._clock)
        self._lag = LoopLag(clock=self._clock)
        self._gate: PeriodicHealth | None = None
        self._clients: list[Client] = []
        self._seed_warnings, self._garden_warnings = Warnings(cluster="seed"), Warnings(cluster="garden")
        self._seed = self._new_seed(access)
        self._elector = LeaderElector(
            client=self._client(access),
            namespace=config.leader_election.resource_namespace,
            name=config.leader_election.resource_name,
            identity=new_identity(hostname=self._hostname, pod_uid=options.pod_uid, rng=self._rng),
            shutdown=self._shutdown,
            clock=self._clock,
            rng=self._rng,
            times=config.leader_election.times,
        )
        self._garden: GardenSide | None = None
        self._manager = self._new_manager()
        self._manager.add_task("event loop lag", self._lag.run)

    async def run(self) -> int:
        """Run until something ends the process; returns the exit code."""
        try:
            return await self._manager.run()
        finally:
            for client in self._clients:
                await client.close()

    # The parts.

    def _new_manager(self) -> Manager:
        checks, server = Checks(), self._config.server
        checks.add_liveness("runtime-informer-sync", self._sync.liveness)
        checks.add_liveness("periodic-health", self._beats)
        checks.add_readiness("runtime-informer-sync", self._sync.readiness)
        checks.add_readiness("startup", self._start)
        checks.add_note("garden-informer-sync", self._garden_sync)
        checks.add_note("event-loop-lag", lambda: f"{self._lag.seconds:.3f} s")
        self._metrics.build_info("gardenlet_build_info", version=VERSION, gardener_version=GARDENER_VERSION)
        lag = "How late the event loop came to its last timer, in seconds."
        self._metrics.gauge("gardenlet_event_loop_lag_seconds", lag, lambda: self._lag.seconds)
        synced = "Whether all caches of the garden have what they select."
        self._metrics.gauge("gardenlet_garden_cache_synced", synced, self._garden_synced)
        probes, metrics = server.health_probes, server.metrics
        profiles = profiling_routes() if self._config.debugging.enable_profiling else ()
        election = self._elector.leading() if self._config.leader_election.leader_elect else None
        return Manager(
            environment=Environment(clock=self._clock, rng=self._rng, metrics=self._metrics),
            shutdown=self._shutdown,
            informer_sync=self._sync,
            servers=[
                health_server(bind_address=probes.bind_address, port=probes.port, checks=checks, tell_reasons=True),
                metrics_server(
                    bind_address=metrics.bind_address, port=metrics.port, metrics=self._metrics, more=profiles
                ),
            ],
            clusters=[self._seed.cluster, self._seed.extensions],
            election=election,
            startup=[self._check_networks, self._connect_garden, self._register, self._add_controllers],
        )

    def _new_seed(self, access: ClusterAccess) -> SeedSide:
        cluster, extensions = (self._seed_cluster(access, name) for name in ("seed", "seed extensions"))
        secrets = None
        if (reference := self._config.garden_client_connection.kubeconfig_secret) is not None:
            only = f"metadata.name={reference.name}"
            secrets = cluster.cache.informer(SECRETS, namespace=reference.namespace, field_selector=only)
        return SeedSide(
            access=access,
            cluster=cluster,
            extensions=dataclasses.replace(extensions, vital=False),
            heartbeat=self._client(access),
            secrets=secrets,
        )

    def _seed_cluster(self, access: ClusterAccess, name: str) -> Cluster:
        client = self._client(access, self._config.seed_client_connection)
        cache = Cache(client=client, clock=self._clock, rng=self._rng, opened=self._metrics.watch_opened)
        recorder = EventRecorder(client=client, instance=self._hostname, clock=self._clock)
        return Cluster(name=name, client=client, cache=cache, recorder=recorder)

    def _client(self, access: ClusterAccess, limits: ClientConnection | None = None, *, garden: bool = False) -> Client:
        """Return a client; without limits for what must never wait for others."""
        limiter = None if limits is None else RateLimiter(qps=limits.qps, burst=limits.burst, clock=self._clock)
        warnings = self._garden_warnings if garden else self._seed_warnings
        transport = HttpTransport(
            access,
            user_agent=USER_AGENT,
            clock=self._clock,
            limiter=limiter,
            observe=self._metrics.observe_request,
            date=self._garden_clock.note if garden else ignore_date,
            warn=warnings.note,
        )
        self._clients.append(Client(transport=transport, rng=self._rng))
        return self._clients[-1]

    def _garden_client(self, access: ClusterAccess) -> Client:
        return self._client(access, self._config.garden_client_connection, garden=True)

    # Health.

    async def _beats(self) -> str | None:
        """Pass until there is a heartbeat: neither a follower nor a bootstrap may be ended by liveness."""
        return None if self._gate is None else await self._gate.check()

    async def _start(self) -> str | None:
        """Fail while a leader is starting; a follower is ready."""
        return await self._startup.check() if self._elector.is_leader else None

    def _garden_synced(self) -> float | None:
        """Return 1 or 0; None, which shows nothing, before the garden is connected."""
        return None if self._garden is None else float(self._garden.cluster.cache.synced)

    def _garden_sync(self) -> str:
        """Say how the garden's caches are: an outage there ends nothing, but an operator wants to know."""
        if self._garden is None:
            return "the garden is not connected yet"
        cache = self._garden.cluster.cache
        behind = [one.resource.plural for one in cache if not one.synced]
        silent = [one.resource.plural for one in cache if not one.answered]
        if not behind and not silent:
            return "synced"
        return f"not listed yet: {', '.join(behind) or 'none'}; without an answer: {', '.join(silent) or 'none'}"

    # The start; leader only.

    async def _check_networks(self) -> None:
        networks = self._template.spec.get("networks") or {}
        await self._startup.step("networks", lambda: check_networks(self._seed.cluster.client, networks))

    async def _connect_garden(self) -> Cluster:
        kubeconfig = GardenKubeconfig(
            connection=self._config.garden_client_connection,
            seed_name=self._name,
            seed=self._seed.cluster.client,
            new_client=self._garden_client,
            clock=self._garden_clock,
            rng=self._rng,
        )
        found = await self._startup.step("garden kubeconfig", kubeconfig.resolve)
        client = self._garden_client(found.access)
        cache = Cache(client=client, clock=self._clock, rng=self._rng, opened=self._metrics.watch_opened)
        recorder = EventRecorder(client=client, instance=self._hostname, clock=self._garden_clock)
        # The garden's caches do not count against liveness: an outage there ends nothing.
        cluster = Cluster(name="garden", client=client, cache=cache, recorder=recorder, vital=False)
        seeds = cache.informer(SEEDS, label_selector=f"name.seed.gardener.cloud/{self._name}=true")
        beats = self._client(found.access, garden=True)
        clients = GardenClients(found.access, client, beats)
        self._garden = GardenSide(cluster, beats, clients, seeds, kubeconfig, found.origin)
        return cluster

    async def _register(self) -> None:
        seed, garden, name = self._seed.cluster.client, self._connected().cluster.client, self._name
        step = self._startup.step
        await step("version skew", lambda: check_version_skew(garden, GARDENER_VERSION))
        await step("self-hosted shoot", lambda: check_self_hosted(seed, garden, name, GARDENER_VERSION))
        await step("registration", lambda: register(garden, self._template))
        await step("namespace of the Seed", lambda: check_namespace(garden, name))
        await step("default domains", lambda: default_domains.fill_in(garden, self._template))
        await step("own Seed in the cache", self._see_seed)
        await step("interrupted shoots", lambda: abort_interrupted(garden, name))
        await step("Gardenlet for upgrades", lambda: self_upgrade.hand_over(seed, garden, self._namespace))
        if features.effective(self._config.feature_gates)[http_proxy_port.GATE]:
            await step("legacy proxy port", lambda: http_proxy_port.check_unified_port(garden, name))

    async def _see_seed(self) -> None:
        seeds = self._connected().seeds
        await seeds.wait_synced()
        if seeds.get(Request("", self._name)) is None:
            raise SeedNotSeen("the garden shows no Seed with our label", label=f"name.seed.gardener.cloud/{self._name}")

    async def _add_controllers(self) -> None:
        garden = self._connected()
        controllers = Controllers(self._process(), self._seed, garden)
        self._gate = controllers.add_heartbeat()
        controllers.add_seed_controllers()
        seed = self._seed.cluster.client
        published = await self._startup.step("addresses of the seed", lambda: api_server.readable(seed))
        hand_over = HandOver(
            seed=seed,
            start=lambda: (*controllers.add_network_policies(published), *controllers.add_eviction_requirements()),
            rng=self._rng,
        )
        await self._startup.step("whose seed this is", hand_over.look)
        self._manager.add_task("whose seed this is", hand_over.run)
        controllers.add_token_requestor()
        controllers.add_identity_tokens()
        if garden.kubeconfig.secret is not None and garden.origin is not Origin.FILE:
            controllers.add_credentials()
        memory = MemoryRelease()
        memory.ask()  # most of what the start took is not needed again once the caches are filled
        self._manager.add_task("memory of the start", memory.run)
        self._startup.done()

    def _process(self) -> Process:
        return Process(
            config=self._config,
            template=self._template,
            environment=self._environment,
            hostname=self._hostname,
            manager=self._manager,
            metrics=self._metrics,
            shutdown=self._shutdown,
            clock=self._clock,
            garden_clock=self._garden_clock,
            rng=self._rng,
        )

    def _connected(self) -> GardenSide:
        if self._garden is None:
            raise RuntimeError("the garden is connected in an earlier step")
        return self._garden
