"""The gardenlet process: builds every object and puts them together; the only place that knows all classes.

::

    servers -> seed -> leader election -> networks -> garden kubeconfig -> garden -> version -> Seed -> namespace -> controllers

Source: gardener cmd/gardenlet/app/app.go (contract core 1.2).
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from random import Random, SystemRandom

from agents.core.clock import Clock, SystemClock
from agents.core.errors import RetriableError
from agents.core.logging import get_logger
from agents.core.shutdown import Shutdown
from agents.kube.client import Client
from agents.kube.errors import NotFound
from agents.kube.events import EventRecorder
from agents.kube.kubeconfig import ClusterAccess
from agents.kube.models import SECRETS, Secret
from agents.kube.ratelimit import RateLimiter
from agents.kube.server_clock import ServerClock
from agents.kube.transport import HttpTransport, ignore_date
from agents.pki.csr import CertificateRequester
from agents.runtime.cache import Cache, Informer
from agents.runtime.cluster import Cluster
from agents.runtime.controller import Environment
from agents.runtime.election import LeaderElector, new_identity
from agents.runtime.health import Checks, InformerSync, PeriodicHealth
from agents.runtime.manager import Manager
from agents.runtime.metrics import Metrics
from agents.runtime.reconcile import Request
from agents.runtime.server import health_server, metrics_server
from agents.runtime.source import ChannelSource
from agents.runtime.tasks import wait_forever
from gardenlet.apis.networking import CLUSTERS, ENDPOINTS, GARDENS, NAMESPACES, NETWORK_POLICIES
from gardenlet.apis.resources import MANAGED_RESOURCES
from gardenlet.apis.seed import SEEDS, Seed
from gardenlet.bootstrap import authorities, rotation
from gardenlet.bootstrap.cleanup import clean_up
from gardenlet.bootstrap.clients import GardenClients
from gardenlet.bootstrap.garden_kubeconfig import GROUP, REQUEST_PREFIX, USER_PREFIX, GardenKubeconfig, Origin
from gardenlet.bootstrap.register import check_namespace, register
from gardenlet.bootstrap.seed_networks import check_networks
from gardenlet.bootstrap.version_skew import check_version_skew
from gardenlet.cli import Options
from gardenlet.config import ClientConnection, GardenletConfiguration, SeedTemplate
from gardenlet.controllers.networkpolicy import controller as networkpolicy
from gardenlet.controllers.networkpolicy.networks import SeedNetworks
from gardenlet.controllers.networkpolicy.resolver import Resolver, target
from gardenlet.controllers.seed import care as seed_care
from gardenlet.controllers.seed import main as seed_main
from gardenlet.controllers.seed import operations as seed_operations
from gardenlet.controllers.tokenrequestor import serviceaccount as token_requestor
from gardenlet.controllers.vpaevictionrequirements import controller as vpaevictionrequirements
from gardenlet.heartbeat import Heartbeat, HeartbeatMetrics
from gardenlet.identity import container_id
from gardenlet.startup import Startup
from gardenlet.version import GARDENER_VERSION

log = get_logger(__name__)

USER_AGENT = f"gardenlet/{GARDENER_VERSION}"


class SeedNotSeen(RetriableError):
    """The garden does not show us our own Seed yet."""


async def run(
    options: Options, config: GardenletConfiguration, access: ClusterAccess, environment: Mapping[str, str]
) -> int:
    """Run until something ends the process; returns the exit code."""
    return await App(options, config, access, environment).run()


@dataclass(frozen=True, slots=True)
class _Garden:
    """What the process has once it knows how the garden is reached."""

    cluster: Cluster
    beats: Client
    clients: GardenClients
    seeds: Informer[Seed]
    kubeconfig: GardenKubeconfig
    origin: Origin


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
        self._gate: PeriodicHealth | None = None
        self._clients: list[Client] = []
        self._seed_access = access
        self._seed, self._extensions = self._new_seed(access), self._new_extensions(access)
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
        self._expires: datetime | None = None
        self._rotation_metrics = rotation.RotationMetrics(self._metrics)
        self._garden: _Garden | None = None
        self._manager = self._new_manager()

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
        probes, metrics = server.health_probes, server.metrics
        election = self._elector.leading() if self._config.leader_election.leader_elect else None
        return Manager(
            environment=Environment(clock=self._clock, rng=self._rng, metrics=self._metrics),
            shutdown=self._shutdown,
            informer_sync=self._sync,
            servers=[
                health_server(bind_address=probes.bind_address, port=probes.port, checks=checks, tell_reasons=True),
                metrics_server(bind_address=metrics.bind_address, port=metrics.port, metrics=self._metrics),
            ],
            clusters=[self._seed, self._extensions],
            election=election,
            startup=[self._check_networks, self._connect_garden, self._register, self._add_controllers],
        )

    def _new_seed(self, access: ClusterAccess) -> Cluster:
        client = self._client(access, self._config.seed_client_connection)
        cache = Cache(client=client, clock=self._clock, rng=self._rng)
        recorder = EventRecorder(client=client, instance=self._hostname, clock=self._clock)
        if (reference := self._config.garden_client_connection.kubeconfig_secret) is not None:
            self._secrets: Informer[Secret] = cache.informer(
                SECRETS, namespace=reference.namespace, field_selector=f"metadata.name={reference.name}"
            )
        return Cluster(name="seed", client=client, cache=cache, recorder=recorder)

    def _new_extensions(self, access: ClusterAccess) -> Cluster:
        """Return the part of the seed whose kinds may be missing: that is nobody's end."""
        client = self._client(access, self._config.seed_client_connection)
        cache = Cache(client=client, clock=self._clock, rng=self._rng)
        recorder = EventRecorder(client=client, instance=self._hostname, clock=self._clock)
        self._managed_resources = [
            cache.informer(MANAGED_RESOURCES, namespace=namespace) for namespace in seed_care.NAMESPACES
        ]
        return Cluster(name="seed extensions", client=client, cache=cache, recorder=recorder, vital=False)

    def _client(self, access: ClusterAccess, limits: ClientConnection | None = None, *, garden: bool = False) -> Client:
        """Return a client; without limits for what must never wait for others."""
        limiter = None if limits is None else RateLimiter(qps=limits.qps, burst=limits.burst, clock=self._clock)
        transport = HttpTransport(
            access,
            user_agent=USER_AGENT,
            clock=self._clock,
            limiter=limiter,
            observe=self._metrics.observe_request,
            date=self._garden_clock.note if garden else ignore_date,
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

    # The start; leader only.

    async def _check_networks(self) -> None:
        networks = self._template.spec.get("networks") or {}
        await self._startup.step("networks", lambda: check_networks(self._seed.client, networks))

    async def _connect_garden(self) -> Cluster:
        kubeconfig = GardenKubeconfig(
            connection=self._config.garden_client_connection,
            seed_name=self._name,
            seed=self._seed.client,
            new_client=self._garden_client,
            clock=self._garden_clock,
            rng=self._rng,
        )
        found = await self._startup.step("garden kubeconfig", kubeconfig.resolve)
        client = self._garden_client(found.access)
        cache = Cache(client=client, clock=self._clock, rng=self._rng)
        recorder = EventRecorder(client=client, instance=self._hostname, clock=self._garden_clock)
        # The garden's caches do not count against liveness: an outage there ends nothing.
        cluster = Cluster(name="garden", client=client, cache=cache, recorder=recorder, vital=False)
        seeds = cache.informer(SEEDS, label_selector=f"name.seed.gardener.cloud/{self._name}=true")
        beats = self._client(found.access, garden=True)
        clients = GardenClients(found.access, client, beats)
        self._garden = _Garden(cluster, beats, clients, seeds, kubeconfig, found.origin)
        return cluster

    async def _register(self) -> None:
        client = self._connected.cluster.client
        await self._startup.step("version skew", lambda: check_version_skew(client, GARDENER_VERSION))
        await self._startup.step("registration", lambda: register(client, self._template))
        await self._startup.step("namespace of the Seed", lambda: check_namespace(client, self._name))
        await self._startup.step("own Seed in the cache", self._see_seed)

    async def _see_seed(self) -> None:
        seeds = self._connected.seeds
        await seeds.wait_synced()
        if seeds.get(Request("", self._name)) is None:
            raise SeedNotSeen("the garden shows no Seed with our label", label=f"name.seed.gardener.cloud/{self._name}")

    async def _add_controllers(self) -> None:
        self._add_heartbeat()
        self._add_seed_controllers()
        if await self._startup.step("whose seed this is", self._is_garden):
            log.info("This seed is a garden, whose operator keeps network policies and eviction requirements")
        else:
            self._add_network_policies()
            self._add_eviction_requirements()
        self._add_token_requestor()
        if self._connected.kubeconfig.secret is not None and self._connected.origin is not Origin.FILE:
            self._add_credentials()
        self._startup.done()

    def _add_heartbeat(self) -> None:
        garden, settings = self._connected, self._config.controllers.seed
        period = float(settings.lease_resync_seconds)
        gate = PeriodicHealth(clock=self._clock, deadline_seconds=period * settings.lease_resync_miss_threshold)
        heartbeat = Heartbeat(
            name=self._name,
            seeds=garden.seeds,
            garden=garden.beats,
            seed=self._client(self._seed_access),
            writer=garden.cluster.client,
            gate=gate,
            clock=self._garden_clock,
            rng=self._rng,
            period=period,
            metrics=HeartbeatMetrics(self._metrics),
        )
        self._manager.add_task("heartbeat", heartbeat.run)
        self._gate = gate

    def _add_seed_controllers(self) -> None:
        garden, settings = self._connected, self._config.controllers
        client = garden.cluster.client
        main = seed_main.Parts(
            name=self._name,
            garden=client,
            seed=self._seed.client,
            identity=seed_main.Identity(container_id(), self._hostname, GARDENER_VERSION),
            resources=self._config.resources,
            settings=settings.seed,
            register=lambda: register(client, self._template),
            expires=lambda: self._expires,
            clock=self._garden_clock,
        )
        self._manager.add_controller(seed_main.new_controller(main, garden.seeds))
        care = seed_care.Parts(
            name=self._name,
            garden=client,
            seeds=garden.seeds,
            resources=self._managed_resources,
            settings=settings.seed_care,
            clock=self._garden_clock,
        )
        self._manager.add_controller(seed_care.new_controller(care))
        asked = seed_operations.Parts(
            name=self._name,
            garden=client,
            seed=self._seed.client,
            kubeconfig=self._config.garden_client_connection.kubeconfig_secret,
        )
        self._manager.add_controller(seed_operations.new_controller(asked, garden.seeds))

    async def _is_garden(self) -> bool:
        """Tell whether the seed is a garden's cluster; a kind that is not there counts as no."""
        try:
            return bool((await self._seed.client.list(GARDENS, limit=1)).items)
        except NotFound:
            return False

    def _add_network_policies(self) -> None:
        settings, cache = self._config.controllers.network_policy, self._seed.cache
        informers = networkpolicy.Informers(
            namespaces=cache.informer(NAMESPACES),
            policies=cache.informer(NETWORK_POLICIES),
            endpoints=cache.informer(ENDPOINTS, namespace="default", field_selector="metadata.name=kubernetes"),
            clusters=self._extensions.cache.informer(CLUSTERS),
        )
        changed = ChannelSource()

        def tell() -> None:
            for request in networkpolicy.all_namespaces(informers):
                changed.send(request)

        host, port = target(self._seed_access.url, self._environment) or (None, 0)
        resolver = Resolver(host, port, changed=tell)
        self._manager.add_task("host of the API server", resolver.run)
        self._manager.add_controller(
            networkpolicy.new_controller(
                client=self._seed.client,
                informers=informers,
                networks=SeedNetworks.of(self._template.spec.get("networks") or {}),
                resolver=resolver,
                changed=changed,
                additional=settings.additional_namespace_selectors,
                workers=settings.concurrent_syncs,
            )
        )

    def _add_eviction_requirements(self) -> None:
        autoscalers = self._extensions.cache.informer(
            vpaevictionrequirements.VERTICAL_POD_AUTOSCALERS, label_selector=vpaevictionrequirements.SELECTOR
        )
        self._manager.add_controller(
            vpaevictionrequirements.new_controller(
                client=self._seed.client,
                autoscalers=autoscalers,
                clock=self._clock,
                workers=self._config.controllers.vpa_eviction_requirements.concurrent_syncs,
            )
        )

    def _add_token_requestor(self) -> None:
        garden = self._connected
        parts = token_requestor.Parts(
            namespace=f"seed-{self._name}",
            seed=self._seed.client,
            garden=garden.cluster.client,
            bundle=lambda: garden.clients.access.ca_data,
            clock=self._garden_clock,
            rng=self._rng,
        )
        secrets = self._seed.cache.informer(SECRETS, label_selector=token_requestor.SELECTOR)
        workers = self._config.controllers.token_requestor.concurrent_syncs
        self._manager.add_controller(token_requestor.new_controller(parts, secrets, workers=workers))

    def _add_credentials(self) -> None:
        """Renew the certificate, follow the garden's authorities, and remove what the bootstrap left."""
        garden, connection = self._connected, self._config.garden_client_connection
        secret, pending, reference = garden.kubeconfig.secret, garden.kubeconfig.pending, connection.kubeconfig_secret
        if secret is None or pending is None or reference is None:
            return
        request, client = Request(reference.namespace, reference.name), garden.cluster.client
        clients = garden.clients
        requester = CertificateRequester(
            client=client,
            common_name=USER_PREFIX + self._name,
            organizations=[GROUP],
            name_prefix=REQUEST_PREFIX,
            expiration=connection.kubeconfig_validity.validity,
            clock=self._garden_clock,
            asked_by=USER_PREFIX + self._name,
            store=pending,
        )
        parts = rotation.Parts(
            seed_name=self._name,
            secret=secret,
            requester=requester,
            pending=pending,
            clients=clients,
            recorder=garden.cluster.recorder,
            validity=connection.kubeconfig_validity,
            shutdown=self._shutdown,
            has_material=garden.kubeconfig.has_material,
            expires=self._certificate_expires,
            clock=self._garden_clock,
            rng=self._rng,
            metrics=self._rotation_metrics,
        )
        self._manager.add_controller(rotation.new_controller(parts, self._secrets, request))
        override = connection.garden_cluster_ca_cert
        followed = authorities.Parts(secret=secret, clients=clients, override=override)
        self._manager.add_controller(authorities.new_controller(followed, request))

        async def clean() -> None:
            await clean_up(seed=self._seed.client, garden=client, secret=secret, pending=pending, clock=self._clock)
            await wait_forever()

        self._manager.add_task("bootstrap leftovers", clean)

    def _certificate_expires(self, moment: datetime) -> None:
        """Take the news; the Seed's status says it with its next reconcile."""
        self._expires = moment

    @property
    def _connected(self) -> _Garden:
        if self._garden is None:
            raise RuntimeError("the garden is connected in an earlier step")
        return self._garden
