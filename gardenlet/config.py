"""`GardenletConfiguration`: fields and Gardener's defaults, `gardenlet.config_validation` has its rules, `gardenlet.cli` reads it.

Source: gardener pkg/apis/config/gardenlet/v1alpha1, cmd/gardenlet/app/options.go (contract core 1.1 and 2).
"""

from datetime import timedelta
from typing import Any, ClassVar, Literal

from pydantic import Field

from agents.core.config import Duration
from agents.runtime.election import ElectionTimes
from gardenlet.config_controllers import Controllers
from gardenlet.config_features import EtcdConfig, ExposureClassHandler, Logging, Monitoring, Sni
from gardenlet.config_model import GardenletModel


class SecretReference(GardenletModel):
    """A Secret in the seed."""

    name: str = ""
    namespace: str = ""


class ClientConnection(GardenletModel):
    """How an API server is talked to."""

    zero_is_unset: ClassVar[frozenset[str]] = frozenset({"qps", "burst"})

    kubeconfig: str = ""
    """Path; empty for none."""
    accept_content_types: str = ""
    """Accepted: JSON is what we speak."""
    content_type: str = ""
    """Accepted: JSON is what we speak."""
    qps: float = 50.0
    """Requests per second."""
    burst: int = 100
    """Requests at once."""


class KubeconfigValidity(GardenletModel):
    """How long a client certificate is to be valid, and when it is replaced."""

    validity: Duration | None = None
    """Asked for in the request; None leaves it to the signer."""
    auto_rotation_jitter_percentage_min: int = 70
    """Earliest time of the rotation, in percent of the validity."""
    auto_rotation_jitter_percentage_max: int = 90
    """Latest time of the rotation, in percent of the validity."""


class GardenClientConnection(ClientConnection):
    """How the garden is talked to."""

    garden_cluster_address: str = ""
    """URL that replaces the server of the bootstrap kubeconfig."""
    bootstrap_kubeconfig: SecretReference | None = None
    """Secret with the kubeconfig that may only ask for a certificate."""
    kubeconfig_secret: SecretReference | None = None
    """Secret that our own kubeconfig is kept in."""
    kubeconfig_validity: KubeconfigValidity = KubeconfigValidity()
    garden_cluster_ca_cert: str = Field(default="", alias="gardenClusterCACert")
    """Of older releases: base64 of the garden's CA, or `none` or `null` to have none; wins over what the garden says (D4)."""


class LeaderElection(GardenletModel):
    """Which of several replicas works."""

    zero_is_unset: ClassVar[frozenset[str]] = frozenset(
        {"leaseDuration", "renewDeadline", "retryPeriod", "resourceLock", "resourceName", "resourceNamespace"}
    )

    leader_elect: bool = True
    lease_duration: Duration = timedelta(seconds=15)
    renew_deadline: Duration = timedelta(seconds=10)
    retry_period: Duration = timedelta(seconds=2)
    resource_lock: str = "leases"
    resource_name: str = "gardenlet-leader-election"
    resource_namespace: str = "garden"

    @property
    def times(self) -> ElectionTimes:
        """Return the times for the elector; they can work if the configuration is valid."""
        return ElectionTimes(self.lease_duration, self.renew_deadline, self.retry_period)


class Endpoint(GardenletModel):
    """Address of one server."""

    zero_is_unset: ClassVar[frozenset[str]] = frozenset({"port"})

    bind_address: str = ""
    """IP address to listen on; empty for all."""
    port: int = 0
    """TCP port."""


class HealthEndpoint(Endpoint):
    """Address of `/healthz` and `/readyz`."""

    port: int = 2728


class MetricsEndpoint(Endpoint):
    """Address of `/metrics`."""

    port: int = 2729


class Server(GardenletModel):
    """Addresses of the two servers."""

    health_probes: HealthEndpoint = HealthEndpoint()
    metrics: MetricsEndpoint = MetricsEndpoint()


class Debugging(GardenletModel):
    """Profiles beside the metrics."""

    enable_profiling: bool = False
    enable_contention_profiling: bool = False


class Resources(GardenletModel):
    """What the seed offers; quantities, by resource."""

    capacity: dict[str, str | int | float] = Field(default_factory=dict)
    reserved: dict[str, str | int | float] = Field(default_factory=dict)


class SeedMetadata(GardenletModel):
    """Metadata of the Seed that is registered."""

    name: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class SeedTemplate(GardenletModel):
    """The Seed that is registered; its spec goes into the garden as it stands here."""

    metadata: SeedMetadata = SeedMetadata()
    spec: dict[str, Any] = Field(default_factory=dict)


class NodeToleration(GardenletModel):
    """How long Pods of a shoot's control plane stay on a node that is not well, in seconds; None leaves it to Kubernetes."""

    default_not_ready_toleration_seconds: int | None = None
    default_unreachable_toleration_seconds: int | None = None


class GardenletConfiguration(GardenletModel):
    """The whole file."""

    zero_is_unset: ClassVar[frozenset[str]] = frozenset({"logLevel", "logFormat"})

    api_version: Literal["gardenlet.config.gardener.cloud/v1alpha1"]
    kind: Literal["GardenletConfiguration"]
    garden_client_connection: GardenClientConnection = GardenClientConnection()
    seed_client_connection: ClientConnection = ClientConnection()
    shoot_client_connection: ClientConnection = ClientConnection()
    """Its kubeconfig is ignored: each shoot has its own."""
    controllers: Controllers = Controllers()
    resources: Resources = Resources()
    leader_election: LeaderElection = LeaderElection()
    log_level: str = "info"
    log_format: str = "json"
    server: Server = Server()
    debugging: Debugging = Debugging()
    feature_gates: dict[str, bool] = Field(default_factory=dict)
    seed_config: SeedTemplate | None = None
    """None in self-hosted-shoot mode only."""
    seed_selector: dict[str, Any] | None = None
    """Of older releases, for several seeds in one process: refused."""
    logging: Logging = Logging()
    sni: Sni = Sni()
    etcd_config: EtcdConfig = EtcdConfig()
    exposure_class_handlers: tuple[ExposureClassHandler, ...] = Field(default=(), strict=False)
    monitoring: Monitoring = Monitoring()
    node_toleration: NodeToleration = NodeToleration()
