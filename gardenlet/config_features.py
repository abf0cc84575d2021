"""Settings of what gardenlet deploys, with Gardener's defaults. Source: gardener pkg/apis/config/gardenlet/v1alpha1 (contract core 2.4).

Some defaults depend on another field; those fields are None here where they are absent, and a property says what counts.
"""

from collections.abc import Mapping
from datetime import timedelta

from pydantic import Field

from agents.core.config import Duration
from gardenlet.config_model import GardenletModel

QuantityText = str | int | float
"""A Kubernetes quantity."""

GATEWAY_LABELS: Mapping[str, str] = {"app": "istio-ingressgateway", "istio": "ingressgateway"}
HANDLER_LABELS: Mapping[str, str] = {"app": "istio-ingressgateway", "gardener.cloud/role": "exposureclass-handler"}


class Storage(GardenletModel):
    """Disk of a log backend in the seed's garden namespace."""

    storage: QuantityText = "100Gi"


class LogBackend(GardenletModel):
    """One log backend."""

    enabled: bool | None = None
    """None: as logging itself."""
    garden: Storage = Storage()


class ShootNodeLogging(GardenletModel):
    """Shoots whose nodes send their logs."""

    shoot_purposes: tuple[str, ...] = Field(default=(), strict=False)


class ShootEventLogging(GardenletModel):
    """Whether events of shoots are logged."""

    enabled: bool | None = None
    """None: as logging itself."""


class Logging(GardenletModel):
    """Logs of the seed and of the shoots' control planes."""

    enabled: bool = False
    vali: LogBackend = LogBackend()
    victoria_logs: LogBackend = LogBackend()
    shoot_node_logging: ShootNodeLogging = ShootNodeLogging()
    shoot_event_logging: ShootEventLogging = ShootEventLogging()

    @property
    def vali_enabled(self) -> bool:
        """Return whether Vali is deployed."""
        return self.enabled if self.vali.enabled is None else self.vali.enabled

    @property
    def victoria_logs_enabled(self) -> bool:
        """Return whether VictoriaLogs is deployed."""
        return self.enabled if self.victoria_logs.enabled is None else self.victoria_logs.enabled

    @property
    def shoot_event_logging_enabled(self) -> bool:
        """Return whether events of shoots are logged."""
        return self.enabled if self.shoot_event_logging.enabled is None else self.shoot_event_logging.enabled


class Ingress(GardenletModel):
    """The gateway in front of the shoots' API servers, as configured; None where nothing is said."""

    namespace: str | None = None
    service_name: str | None = None
    labels: dict[str, str] | None = None
    service_external_ip: str | None = Field(default=None, alias="serviceExternalIP")
    """IP address of the Service, if it must be a certain one."""


class Sni(GardenletModel):
    """Where the gateway is."""

    ingress: Ingress = Ingress()

    @property
    def effective(self) -> Ingress:
        """Return the gateway with what is not configured filled in; labels may be configured to be none."""
        ingress = self.ingress
        labels = dict(GATEWAY_LABELS) if ingress.labels is None else ingress.labels
        return _filled(ingress, namespace="istio-ingress", labels=labels)


class LoadBalancerService(GardenletModel):
    """The Service of a gateway."""

    annotations: dict[str, str] = Field(default_factory=dict)
    class_: str | None = Field(default=None, alias="class")


class ExposureClassHandler(GardenletModel):
    """A further gateway, for shoots of certain ExposureClasses."""

    name: str = ""
    load_balancer_service: LoadBalancerService = LoadBalancerService()
    sni: Sni = Sni()

    @property
    def effective(self) -> Ingress:
        """Return the gateway with what is not configured filled in; labels that are none count as not configured."""
        ingress = self.sni.ingress
        labels = ingress.labels or dict(HANDLER_LABELS)
        return _filled(ingress, namespace=f"istio-ingress-handler-{self.name}", labels=labels)


class FiftyWorkers(GardenletModel):
    """Workers of etcd-druid's controller of Etcds."""

    workers: int = 50


class TenWorkers(GardenletModel):
    """Workers of etcd-druid's custodian."""

    workers: int = 10


class BackupCompaction(GardenletModel):
    """Compaction of etcd backups."""

    workers: int = 3
    enable_backup_compaction: bool = False
    events_threshold: int = 1_000_000
    active_deadline_duration: Duration | None = None
    """None leaves it to etcd-druid (3h)."""
    metrics_scrape_wait_duration: Duration = timedelta(seconds=60)


class BackupLeaderElection(GardenletModel):
    """Election among the backup sidecars; None leaves it to them."""

    reelection_period: Duration | None = None
    etcd_connection_timeout: Duration | None = None


class EtcdConfig(GardenletModel):
    """Settings of etcd-druid."""

    etcd_controller: FiftyWorkers = FiftyWorkers()
    custodian_controller: TenWorkers = TenWorkers()
    backup_compaction_controller: BackupCompaction = BackupCompaction()
    backup_leader_election: BackupLeaderElection = BackupLeaderElection()
    feature_gates: dict[str, bool] = Field(default_factory=dict)
    """Of etcd-druid; passed through."""
    delta_snapshot_retention_period: Duration | None = None
    """None leaves it to etcd-druid."""


class RemoteWrite(GardenletModel):
    """Where metrics are sent, too."""

    url: str = ""
    keep: tuple[str, ...] = Field(default=(), strict=False)
    """Names of metrics; empty for all."""


class ShootMonitoring(GardenletModel):
    """Prometheus of each shoot."""

    enabled: bool = True
    remote_write: RemoteWrite | None = None
    external_labels: dict[str, str] = Field(default_factory=dict)


class Monitoring(GardenletModel):
    """Metrics."""

    shoot: ShootMonitoring = ShootMonitoring()


def _filled(ingress: Ingress, *, namespace: str, labels: dict[str, str]) -> Ingress:
    update = {
        "namespace": namespace if ingress.namespace is None else ingress.namespace,
        "service_name": "istio-ingressgateway" if ingress.service_name is None else ingress.service_name,
        "labels": labels,
    }
    return ingress.model_copy(update=update)
