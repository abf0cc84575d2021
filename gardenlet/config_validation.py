"""Rules of the configuration: each problem is one line with its JSON path, and all of them come out at once.

Rows marked "ours" are stricter than Gardener's, where Gardener would start and then fail, or fail to work without saying so.
Source: gardener pkg/api/config/gardenlet/v1alpha1/validation, cmd/gardenlet/app/options.go (contract core 2).
"""

import os
from base64 import b64decode
from collections.abc import Iterable, Iterator
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from agents.kube.names import is_dns_label, is_qualified_name, selector_problems
from agents.kube.quantity import InvalidQuantity, parse_quantity, whole_quantity
from gardenlet import features
from gardenlet.config import (
    ClientConnection,
    Endpoint,
    GardenClientConnection,
    GardenletConfiguration,
    LeaderElection,
    Resources,
    SecretReference,
)
from gardenlet.config_controllers import (
    BackupEntryController,
    ConditionThreshold,
    Controllers,
    ShootCare,
    ShootController,
)
from gardenlet.config_features import ExposureClassHandler
from gardenlet.seed_template import validate_seed_template

LOG_LEVELS = ("debug", "info", "error")
LOG_FORMATS = ("json", "text")
SHORTEST_VALIDITY = timedelta(minutes=10)
PORTS = range(1, 65536)
DNS_TTL_SECONDS = range(30, 601)
JITTER_FACTOR = 1.2
"""The elector's: how far renewDeadline must be above retryPeriod."""
PURPOSES = ("development", "evaluation", "infrastructure", "production", "testing")
SEED_CONDITIONS = (
    "BackupBucketsReady",
    "EmergencyStopShootReconciliations",
    "ExtensionsReady",
    "GardenletReady",
    "SeedSystemComponentsHealthy",
)
NO_CA = ("none", "null")

_ZERO = timedelta(0)


def validate(config: GardenletConfiguration, *, self_hosted: bool) -> Iterator[str]:
    """Yield every problem as `json.path: reason`."""
    yield from features.problems(config.feature_gates)
    yield from _garden_connection(config.garden_client_connection)
    yield from _connection(config.seed_client_connection, "seedClientConnection")
    yield from _connection(config.shoot_client_connection, "shootClientConnection")
    yield from _one_of("logLevel", config.log_level, LOG_LEVELS)
    yield from _one_of("logFormat", config.log_format, LOG_FORMATS)
    yield from _servers(config.server.health_probes, config.server.metrics)
    yield from _resources(config.resources)
    yield from _seed(config, self_hosted=self_hosted)
    yield from _leader_election(config.leader_election)
    yield from _controllers(config.controllers)
    for name in ("default_not_ready_toleration_seconds", "default_unreachable_toleration_seconds"):
        alias = type(config.node_toleration).model_fields[name].alias
        yield from _not_negative(f"nodeToleration.{alias}", getattr(config.node_toleration, name))
    yield from _features(config)


def _garden_connection(connection: GardenClientConnection) -> Iterator[str]:
    path = "gardenClientConnection"
    yield from _connection(connection, path)
    chosen = connection.kubeconfig and connection.kubeconfig_secret is None and connection.bootstrap_kubeconfig is None
    if chosen and not os.access(connection.kubeconfig, os.R_OK):
        reason = "not readable" if Path(connection.kubeconfig).exists() else "No such file or directory"
        yield f"{path}.kubeconfig: cannot be read: {reason}"
    if connection.garden_cluster_address:
        yield from _url(f"{path}.gardenClusterAddress", connection.garden_cluster_address)
    yield from _reference(f"{path}.bootstrapKubeconfig", connection.bootstrap_kubeconfig)
    yield from _reference(f"{path}.kubeconfigSecret", connection.kubeconfig_secret)
    validity = connection.kubeconfig_validity
    path = f"{path}.kubeconfigValidity"
    if validity.validity is not None and validity.validity < SHORTEST_VALIDITY:
        yield f"{path}.validity: must be at least 10m"
    earliest, latest = validity.auto_rotation_jitter_percentage_min, validity.auto_rotation_jitter_percentage_max
    if earliest < 1:
        yield f"{path}.autoRotationJitterPercentageMin: must be at least 1"
    elif earliest >= latest:
        yield f"{path}.autoRotationJitterPercentageMin: must be less than autoRotationJitterPercentageMax"
    if latest > 100:
        yield f"{path}.autoRotationJitterPercentageMax: must be at most 100"
    if (ca := connection.garden_cluster_ca_cert) and ca not in NO_CA:
        try:
            b64decode(ca, validate=True)
        except ValueError:
            yield "gardenClientConnection.gardenClusterCACert: not base64, none or null"


def _connection(connection: ClientConnection, path: str) -> Iterator[str]:
    if connection.burst < 0:
        yield f"{path}.burst: must not be negative"
    if connection.qps <= 0:
        yield f"{path}.qps: must be above 0"


def _reference(path: str, reference: SecretReference | None) -> Iterator[str]:
    if reference is not None:
        if not reference.name:
            yield f"{path}.name: required"
        if not reference.namespace:
            yield f"{path}.namespace: required"


def _servers(probes: Endpoint, metrics: Endpoint) -> Iterator[str]:
    for name, endpoint in (("healthProbes", probes), ("metrics", metrics)):
        if endpoint.port not in PORTS:
            yield f"server.{name}.port: must be between 1 and 65535"
    if probes.port == metrics.port:
        yield "server.metrics.port: must differ from server.healthProbes.port"


def _resources(resources: Resources) -> Iterator[str]:
    values: dict[str, dict[str, int]] = {"capacity": {}, "reserved": {}}
    for kind, quantities in (("capacity", resources.capacity), ("reserved", resources.reserved)):
        for name, quantity in quantities.items():
            try:
                values[kind][name] = whole_quantity(quantity)
            except InvalidQuantity as error:
                yield f"resources.{kind}.{name}: {error.message}"
    for name in resources.reserved:
        if name not in resources.capacity:
            yield f"resources.reserved.{name}: reserved without capacity"
    for name, reserved in values["reserved"].items():
        if reserved > values["capacity"].get(name, reserved):
            yield f"resources.reserved.{name}: must not be above the capacity"


def _seed(config: GardenletConfiguration, *, self_hosted: bool) -> Iterator[str]:
    """One seed for each process, none for a self-hosted shoot's own gardenlet (ours: W3)."""
    if config.seed_selector is not None:
        yield "seedSelector: one process serves one seed, set seedConfig instead"
    if config.seed_config is None:
        if not self_hosted:
            yield "seedConfig: required"
        return
    if self_hosted:
        yield "seedConfig: must not be set in the namespace kube-system, where gardenlet serves a self-hosted shoot"
    if not config.seed_config.metadata.name:
        yield "seedConfig.metadata.name: required"
    yield from validate_seed_template(config.seed_config.model_dump(by_alias=True), "seedConfig")


def _leader_election(election: LeaderElection) -> Iterator[str]:
    if not election.leader_elect:
        return
    path = "leaderElection"
    times = {
        "leaseDuration": election.lease_duration,
        "renewDeadline": election.renew_deadline,
        "retryPeriod": election.retry_period,
    }
    for name, value in times.items():
        if value <= _ZERO:
            yield f"{path}.{name}: must be above 0"
    if election.lease_duration <= election.renew_deadline:
        yield f"{path}.leaseDuration: must be above renewDeadline"
    elif timedelta(seconds=election.lease_duration // timedelta(seconds=1)) <= election.renew_deadline:
        yield f"{path}.leaseDuration: must be above renewDeadline in whole seconds, as a Lease has no fractions"
    if election.renew_deadline <= JITTER_FACTOR * election.retry_period:
        yield f"{path}.renewDeadline: must be above 1.2 * retryPeriod"
    if election.resource_lock != "leases":
        yield f"{path}.resourceLock: must be leases"


def _controllers(controllers: Controllers) -> Iterator[str]:
    path = "controllers"
    if controllers.cache_sync_timeout <= _ZERO:
        yield f"{path}.cacheSyncTimeout: must be above 0"
    for name, field in type(controllers).model_fields.items():
        settings = getattr(controllers, name)
        if hasattr(settings, "concurrent_syncs"):
            yield from _not_negative(f"{path}.{field.alias}.concurrentSyncs", settings.concurrent_syncs)
    for name, period in (
        ("controllerInstallationCare", controllers.controller_installation_care.sync_period),
        ("gardenlet", controllers.gardenlet.sync_period),
        ("seed", controllers.seed.sync_period),
        ("seedCare", controllers.seed_care.sync_period),
    ):
        if period <= _ZERO:
            yield f"{path}.{name}.syncPeriod: must be above 0"
    yield from _at_least_one(f"{path}.seed.leaseResyncSeconds", controllers.seed.lease_resync_seconds)
    yield from _at_least_one(f"{path}.seed.leaseResyncMissThreshold", controllers.seed.lease_resync_miss_threshold)
    yield from _thresholds(f"{path}.seedCare", controllers.seed_care.condition_thresholds, known=SEED_CONDITIONS)
    yield from _backup_entry(controllers.backup_entry)
    yield from _shoot(controllers.shoot)
    yield from _shoot_care(controllers.shoot_care)
    yield from _not_negative(f"{path}.shootState.syncPeriod", controllers.shoot_state.sync_period)
    managed = controllers.managed_seed
    yield from _not_negative(f"{path}.managedSeed.syncPeriod", managed.sync_period)
    yield from _not_negative(f"{path}.managedSeed.waitSyncPeriod", managed.wait_sync_period)
    yield from _not_negative(f"{path}.managedSeed.syncJitterPeriod", managed.sync_jitter_period)
    for index, selector in enumerate(controllers.network_policy.additional_namespace_selectors):
        yield from selector_problems(selector, f"{path}.networkPolicy.additionalNamespaceSelectors[{index}]")
    if controllers.token_requestor_workload_identity.token_expiration_duration < SHORTEST_VALIDITY:
        yield f"{path}.tokenRequestorWorkloadIdentity.tokenExpirationDuration: must be at least 10m"


def _backup_entry(entry: BackupEntryController) -> Iterator[str]:
    path = "controllers.backupEntry.deletionGracePeriodShootPurposes"
    if entry.deletion_grace_period_shoot_purposes and entry.deletion_grace_period_hours <= 0:
        yield f"{path}: only with deletionGracePeriodHours above 0"
    for index, purpose in enumerate(entry.deletion_grace_period_shoot_purposes):
        yield from _one_of(f"{path}[{index}]", purpose, PURPOSES)


def _shoot(shoot: ShootController) -> Iterator[str]:
    path = "controllers.shoot"
    yield from _not_negative(f"{path}.syncPeriod", shoot.sync_period)
    yield from _not_negative(f"{path}.retryDuration", shoot.retry_duration)
    yield from _not_negative(f"{path}.progressReportPeriod", shoot.progress_report_period)
    if shoot.dns_entry_ttl_seconds not in DNS_TTL_SECONDS:
        yield f"{path}.dnsEntryTTLSeconds: must be between 30 and 600"


def _shoot_care(care: ShootCare) -> Iterator[str]:
    path = "controllers.shootCare"
    yield from _not_negative(f"{path}.syncPeriod", care.sync_period)
    yield from _not_negative(
        f"{path}.staleExtensionHealthChecks.threshold", care.stale_extension_health_checks.threshold
    )
    yield from _not_negative(f"{path}.managedResourceProgressingThreshold", care.managed_resource_progressing_threshold)
    yield from _thresholds(path, care.condition_thresholds)


def _thresholds(path: str, thresholds: Iterable[ConditionThreshold], known: tuple[str, ...] = ()) -> Iterator[str]:
    for index, threshold in enumerate(thresholds):
        where = f"{path}.conditionThresholds[{index}]"
        yield from _not_negative(f"{where}.duration", threshold.duration)
        if known:
            yield from _one_of(f"{where}.type", threshold.type, known)


def _features(config: GardenletConfiguration) -> Iterator[str]:
    yield from _ip("sni.ingress.serviceExternalIP", config.sni.ingress.service_external_ip)
    for index, handler in enumerate(config.exposure_class_handlers):
        yield from _handler(f"exposureClassHandlers[{index}]", handler)
    for name, backend in (("vali", config.logging.vali), ("victoriaLogs", config.logging.victoria_logs)):
        try:
            parse_quantity(backend.garden.storage)
        except InvalidQuantity as error:
            yield f"logging.{name}.garden.storage: {error.message}"


def _handler(path: str, handler: ExposureClassHandler) -> Iterator[str]:
    if not is_dns_label(handler.name):
        yield f"{path}.name: not a DNS-1123 label"
    if (class_ := handler.load_balancer_service.class_) is not None and not is_qualified_name(class_):
        yield f"{path}.loadBalancerService.class: not a qualified name"
    yield from _ip(f"{path}.sni.ingress.serviceExternalIP", handler.sni.ingress.service_external_ip)


def _one_of(path: str, value: str, allowed: tuple[str, ...]) -> Iterator[str]:
    if value not in allowed:
        yield f"{path}: must be one of {', '.join(allowed)}"


def _not_negative(path: str, value: float | timedelta | None) -> Iterator[str]:
    if value is not None and (value < _ZERO if isinstance(value, timedelta) else value < 0):
        yield f"{path}: must not be negative"


def _at_least_one(path: str, value: int) -> Iterator[str]:
    if value < 1:
        yield f"{path}: must be at least 1"


def _ip(path: str, value: str | None) -> Iterator[str]:
    if value is None:
        return
    try:
        ip_address(value)
    except ValueError:
        yield f"{path}: not an IP address"


def _url(path: str, value: str) -> Iterator[str]:
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        yield f"{path}: not a URL such as https://garden.example"
