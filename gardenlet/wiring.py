"""The controllers of a running gardenlet, each built from what the process has; `app.py` decides what runs, and when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random

from agents.core.clock import Clock
from agents.core.shutdown import Shutdown
from agents.kube.client import Client
from agents.kube.events import ObjectReference
from agents.kube.kubeconfig import ClusterAccess
from agents.kube.models import LEASES, SECRETS, Secret
from agents.kube.objects import Document
from agents.pki.csr import CertificateRequester
from agents.runtime.cache import Informer
from agents.runtime.cluster import Cluster
from agents.runtime.health import PeriodicHealth
from agents.runtime.manager import End, Manager
from agents.runtime.metrics import Metrics
from agents.runtime.reconcile import Request
from agents.runtime.source import ChannelSource
from agents.runtime.tasks import wait_forever
from gardenlet import features
from gardenlet.apis.networking import CLUSTERS, NAMESPACES
from gardenlet.apis.resources import MANAGED_RESOURCES
from gardenlet.apis.seed import SEEDS, Seed
from gardenlet.bootstrap import authorities, rotation
from gardenlet.bootstrap.cleanup import clean_up
from gardenlet.bootstrap.clients import GardenClients
from gardenlet.bootstrap.garden_kubeconfig import GROUP, REQUEST_PREFIX, USER_PREFIX, GardenKubeconfig, Origin
from gardenlet.bootstrap.register import register
from gardenlet.care import prometheus
from gardenlet.config import GardenletConfiguration, SeedTemplate
from gardenlet.controllers.networkpolicy import api_server
from gardenlet.controllers.networkpolicy import controller as networkpolicy
from gardenlet.controllers.networkpolicy.networks import SeedNetworks
from gardenlet.controllers.networkpolicy.policies import LOCAL_POLICIES
from gardenlet.controllers.networkpolicy.resolver import Resolver, target
from gardenlet.controllers.seed import care as seed_care
from gardenlet.controllers.seed import garbage as seed_garbage
from gardenlet.controllers.seed import main as seed_main
from gardenlet.controllers.seed import operations as seed_operations
from gardenlet.controllers.tokenrequestor import serviceaccount as token_requestor
from gardenlet.controllers.tokenrequestor import workloadidentity as identity_tokens
from gardenlet.controllers.vpaevictionrequirements import controller as vpaevictionrequirements
from gardenlet.heartbeat import NAMESPACE, Heartbeat, HeartbeatMetrics
from gardenlet.identity import container_id
from gardenlet.lease_conflict import LeaseConflict
from gardenlet.version import GARDENER_VERSION


@dataclass(frozen=True, slots=True)
class SeedSide:
    """The seed as the process sees it.

    Attributes:
        access: how its API server is reached.
        cluster: kinds that every cluster has.
        extensions: kinds that may be missing, or fail on their own: that is nobody's end.
        heartbeat: a client that waits for nobody.
        secrets: has the Secret with the garden's kubeconfig; None where the configuration names none.
    """

    access: ClusterAccess
    cluster: Cluster
    extensions: Cluster
    heartbeat: Client
    secrets: Informer[Secret] | None


@dataclass(frozen=True, slots=True)
class GardenSide:
    """The garden, once the process knows how it is reached."""

    cluster: Cluster
    beats: Client
    clients: GardenClients
    seeds: Informer[Seed]
    kubeconfig: GardenKubeconfig
    origin: Origin


@dataclass(frozen=True, slots=True)
class Process:
    """What belongs to the process as a whole.

    Attributes:
        clock: of this machine.
        garden_clock: corrected by what the garden says.
    """

    config: GardenletConfiguration
    template: SeedTemplate
    environment: Mapping[str, str]
    hostname: str
    manager: Manager
    metrics: Metrics
    shutdown: Shutdown
    clock: Clock
    garden_clock: Clock
    rng: Random


class Controllers:
    """Adds controllers to the manager; each function adds one thing, or what belongs together."""

    def __init__(self, process: Process, seed: SeedSide, garden: GardenSide) -> None:
        self._process, self._seed, self._garden = process, seed, garden
        self._name = process.template.metadata.name
        self._settings = process.config.controllers
        self._expires: datetime | None = None
        self._rotation_metrics = rotation.RotationMetrics(process.metrics)

    def add_heartbeat(self) -> PeriodicHealth:
        """Beat, and return what tells whether there was a beat in time."""
        garden, settings, process = self._garden, self._settings.seed, self._process
        period = float(settings.lease_resync_seconds)
        gate = PeriodicHealth(clock=process.clock, deadline_seconds=period * settings.lease_resync_miss_threshold)
        heartbeat = Heartbeat(
            name=self._name,
            seeds=garden.seeds,
            garden=garden.beats,
            seed=self._seed.heartbeat,
            writer=garden.cluster.client,
            gate=gate,
            clock=process.garden_clock,
            rng=process.rng,
            period=period,
            conflict=self._new_lease_conflict(),
            metrics=HeartbeatMetrics(process.metrics),
        )
        process.manager.add_task("heartbeat", heartbeat.run)
        return gate

    def _new_lease_conflict(self) -> LeaseConflict:
        garden, process = self._garden.cluster, self._process
        seed = ObjectReference(kind=SEEDS.kind, name=self._name, api_version=SEEDS.api_version)

        def tell(reason: str, note: str) -> None:
            garden.recorder.event(
                seed, event_type="Warning", reason=reason, action="Renew", note=note, controller="gardenlet"
            )

        leases = garden.cache.informer(LEASES, namespace=NAMESPACE, field_selector=f"metadata.name={self._name}")
        return LeaseConflict(leases=leases, tell=tell, clock=process.clock, metrics=process.metrics)

    def add_seed_controllers(self) -> None:
        """Keep the Seed: registration and status, care, and what its annotations ask for."""
        garden, settings, process = self._garden, self._settings, self._process
        client = garden.cluster.client
        main = seed_main.Parts(
            name=self._name,
            garden=client,
            seed=self._seed.cluster.client,
            identity=seed_main.Identity(container_id(), process.hostname, GARDENER_VERSION),
            resources=process.config.resources,
            settings=settings.seed,
            register=lambda: register(client, process.template),
            expires=lambda: self._expires,
            clock=process.garden_clock,
        )
        process.manager.add_controller(seed_main.new_controller(main, garden.seeds))
        care = seed_care.Parts(
            name=self._name,
            garden=client,
            seeds=garden.seeds,
            resources=[
                self._seed.extensions.cache.informer(MANAGED_RESOURCES, namespace=namespace, optional=True)
                for namespace in seed_care.NAMESPACES
            ],
            settings=settings.seed_care,
            clock=process.garden_clock,
            monitoring=self._monitoring(),
        )
        process.manager.add_controller(seed_care.new_controller(care))
        asked = seed_operations.Parts(
            name=self._name,
            garden=client,
            seed=self._seed.cluster.client,
            kubeconfig=process.config.garden_client_connection.kubeconfig_secret,
        )
        process.manager.add_controller(seed_operations.new_controller(asked, garden.seeds))
        pods = seed_garbage.Parts(seed=self._seed.cluster.client, clock=process.clock)
        process.manager.add_controller(seed_garbage.new_controller(pods))

    def _monitoring(self) -> Informer[Document] | None:
        if not features.effective(self._process.config.feature_gates)["PrometheusHealthChecks"]:
            return None
        return self._seed.extensions.cache.informer(
            prometheus.PROMETHEUSES, namespace="garden", label_selector=prometheus.SELECTOR, optional=True
        )

    def add_network_policies(self, published: api_server.Kind) -> Sequence[End]:
        """Keep the network policies, with the API server's addresses as the seed publishes them; returns what ends that."""
        settings, cache, process = self._settings.network_policy, self._seed.cluster.cache, self._process
        informers = networkpolicy.Informers(
            namespaces=cache.informer(NAMESPACES),
            policies=cache.informer(LOCAL_POLICIES),
            api_server=api_server.observe(cache, published),
            clusters=self._seed.extensions.cache.informer(CLUSTERS, optional=True),
        )
        changed = ChannelSource()

        def tell() -> None:
            for request in networkpolicy.all_namespaces(informers):
                changed.send(request)

        host, port = target(self._seed.access.url, process.environment) or (None, 0)
        resolver = Resolver(host, port, changed=tell)
        controller = networkpolicy.new_controller(
            client=self._seed.cluster.client,
            informers=informers,
            networks=SeedNetworks.of(process.template.spec.get("networks") or {}),
            resolver=resolver,
            changed=changed,
            additional=settings.additional_namespace_selectors,
            workers=settings.concurrent_syncs,
        )
        return (
            process.manager.add_task("host of the API server", resolver.run),
            process.manager.add_controller(controller),
        )

    def add_eviction_requirements(self) -> Sequence[End]:
        """Keep the eviction requirements; returns what ends that."""
        autoscalers = self._seed.extensions.cache.informer(
            vpaevictionrequirements.VERTICAL_POD_AUTOSCALERS,
            label_selector=vpaevictionrequirements.SELECTOR,
            optional=True,
        )
        controller = vpaevictionrequirements.new_controller(
            client=self._seed.cluster.client,
            autoscalers=autoscalers,
            clock=self._process.clock,
            workers=self._settings.vpa_eviction_requirements.concurrent_syncs,
        )
        return (self._process.manager.add_controller(controller),)

    def add_token_requestor(self) -> None:
        """Request tokens of ServiceAccounts of the garden."""
        garden, process = self._garden, self._process
        parts = token_requestor.Parts(
            namespace=f"seed-{self._name}",
            seed=self._seed.cluster.client,
            garden=garden.cluster.client,
            bundle=lambda: garden.clients.access.ca_data,
            clock=process.garden_clock,
            rng=process.rng,
        )
        secrets = self._seed.cluster.cache.informer(SECRETS, label_selector=token_requestor.SELECTOR)
        workers = self._settings.token_requestor.concurrent_syncs
        process.manager.add_controller(token_requestor.new_controller(parts, secrets, workers=workers))

    def add_identity_tokens(self) -> None:
        """Request tokens of WorkloadIdentities of the garden."""
        process, settings = self._process, self._settings.token_requestor_workload_identity
        parts = identity_tokens.Parts(
            seed=self._seed.cluster.client,
            garden=self._garden.cluster.client,
            life=settings.token_expiration_duration,
            clock=process.garden_clock,
            rng=process.rng,
        )
        secrets = self._seed.cluster.cache.informer(SECRETS, label_selector=identity_tokens.SELECTOR)
        process.manager.add_controller(
            identity_tokens.new_controller(parts, secrets, workers=settings.concurrent_syncs)
        )

    def add_credentials(self) -> None:
        """Renew the certificate, follow the garden's authorities, and remove what the bootstrap left."""
        garden, seed, process = self._garden, self._seed, self._process
        connection = process.config.garden_client_connection
        secret, pending, reference = garden.kubeconfig.secret, garden.kubeconfig.pending, connection.kubeconfig_secret
        if secret is None or pending is None or reference is None or seed.secrets is None:
            return
        request, client = Request(reference.namespace, reference.name), garden.cluster.client
        clients = garden.clients
        requester = CertificateRequester(
            client=client,
            common_name=USER_PREFIX + self._name,
            organizations=[GROUP],
            name_prefix=REQUEST_PREFIX,
            expiration=connection.kubeconfig_validity.validity,
            clock=process.garden_clock,
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
            shutdown=process.shutdown,
            has_material=garden.kubeconfig.has_material,
            expires=self._certificate_expires,
            clock=process.garden_clock,
            rng=process.rng,
            metrics=self._rotation_metrics,
        )
        process.manager.add_controller(rotation.new_controller(parts, seed.secrets, request))
        override = connection.garden_cluster_ca_cert
        followed = authorities.Parts(secret=secret, clients=clients, override=override)
        process.manager.add_controller(authorities.new_controller(followed, request))

        async def clean() -> None:
            await clean_up(
                seed=self._seed.cluster.client, garden=client, secret=secret, pending=pending, clock=process.clock
            )
            await wait_forever()

        process.manager.add_task("bootstrap leftovers", clean)

    def _certificate_expires(self, moment: datetime) -> None:
        """Take the news; the Seed's status says it with its next reconcile."""
        self._expires = moment
