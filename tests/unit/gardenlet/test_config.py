"""The component configuration: defaults, what counts as absent, and every rule."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from agents.core.config import ConfigError
from agents.runtime.election import ElectionTimes
from gardenlet import cli
from gardenlet.config import GardenletConfiguration

CREDENTIALS = {"apiVersion": "v1", "kind": "Secret", "name": "dns", "namespace": "garden"}
INTERNAL = {"type": "aws", "domain": "internal.example.org", "credentialsRef": CREDENTIALS}
SEED: dict[str, Any] = {"metadata": {"name": "seed"}, "spec": {"dns": {"internal": INTERNAL}}}
MINIMAL: dict[str, Any] = {
    "apiVersion": "gardenlet.config.gardener.cloud/v1alpha1",
    "kind": "GardenletConfiguration",
    "seedConfig": SEED,
}
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def read(tmp_path: Path, document: dict[str, Any], **environment: str) -> GardenletConfiguration:
    """Load a document."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    options = cli.parse([f"--config={path}"], environment)
    return cli.load_config(options, environment)


def load(tmp_path: Path, **changes: Any) -> GardenletConfiguration:
    """Load the minimal configuration with some top-level keys replaced."""
    return read(tmp_path, {**MINIMAL, **changes})


def problems(call: Callable[[], object]) -> list[str]:
    """Return the problems of a configuration that is refused."""
    with pytest.raises(ConfigError) as caught:
        call()
    return caught.value.problems


def nested(path: str, value: object) -> dict[str, Any]:
    """Return a value at the end of a path."""
    result: Any = value
    for key in reversed(path.split(".")):
        result = {key: result}
    assert isinstance(result, dict)
    return result


def at(config: GardenletConfiguration, path: str) -> object:
    """Return the value at a JSON path."""
    value: Any = config
    for key in path.split("."):
        fields = type(value).model_fields
        value = getattr(value, next(name for name, field in fields.items() if field.alias == key))
    return value


DEFAULTS: dict[str, object] = {
    "gardenClientConnection.kubeconfig": "",
    "gardenClientConnection.acceptContentTypes": "",
    "gardenClientConnection.contentType": "",
    "gardenClientConnection.qps": 50.0,
    "gardenClientConnection.burst": 100,
    "gardenClientConnection.gardenClusterAddress": "",
    "gardenClientConnection.gardenClusterCACert": "",
    "gardenClientConnection.bootstrapKubeconfig": None,
    "gardenClientConnection.kubeconfigSecret": None,
    "gardenClientConnection.kubeconfigValidity.validity": None,
    "gardenClientConnection.kubeconfigValidity.autoRotationJitterPercentageMin": 70,
    "gardenClientConnection.kubeconfigValidity.autoRotationJitterPercentageMax": 90,
    "seedClientConnection.kubeconfig": "",
    "seedClientConnection.qps": 50.0,
    "seedClientConnection.burst": 100,
    "shootClientConnection.qps": 50.0,
    "shootClientConnection.burst": 100,
    "logLevel": "info",
    "logFormat": "json",
    "server.healthProbes.bindAddress": "",
    "server.healthProbes.port": 2728,
    "server.metrics.bindAddress": "",
    "server.metrics.port": 2729,
    "debugging.enableProfiling": False,
    "debugging.enableContentionProfiling": False,
    "featureGates": {},
    "resources.capacity": {},
    "resources.reserved": {},
    "seedSelector": None,
    "nodeToleration.defaultNotReadyTolerationSeconds": None,
    "nodeToleration.defaultUnreachableTolerationSeconds": None,
    "leaderElection.leaderElect": True,
    "leaderElection.leaseDuration": 15 * SECOND,
    "leaderElection.renewDeadline": 10 * SECOND,
    "leaderElection.retryPeriod": 2 * SECOND,
    "leaderElection.resourceLock": "leases",
    "leaderElection.resourceName": "gardenlet-leader-election",
    "leaderElection.resourceNamespace": "garden",
    "controllers.cacheSyncTimeout": 2 * MINUTE,
    "controllers.backupBucket.concurrentSyncs": 20,
    "controllers.backupEntry.concurrentSyncs": 20,
    "controllers.backupEntry.deletionGracePeriodHours": 0,
    "controllers.backupEntry.deletionGracePeriodShootPurposes": (),
    "controllers.bastion.concurrentSyncs": 20,
    "controllers.controllerInstallation.concurrentSyncs": 20,
    "controllers.controllerInstallationCare.concurrentSyncs": 20,
    "controllers.controllerInstallationCare.syncPeriod": 30 * SECOND,
    "controllers.controllerInstallationRequired.concurrentSyncs": 1,
    "controllers.gardenlet.syncPeriod": HOUR,
    "controllers.seed.syncPeriod": MINUTE,
    "controllers.seed.leaseResyncSeconds": 2,
    "controllers.seed.leaseResyncMissThreshold": 10,
    "controllers.seedCare.syncPeriod": 30 * SECOND,
    "controllers.seedCare.conditionThresholds": (),
    "controllers.shoot.concurrentSyncs": 20,
    "controllers.shoot.syncPeriod": HOUR,
    "controllers.shoot.retryDuration": 12 * HOUR,
    "controllers.shoot.respectSyncPeriodOverwrite": False,
    "controllers.shoot.reconcileInMaintenanceOnly": False,
    "controllers.shoot.progressReportPeriod": None,
    "controllers.shoot.dnsEntryTTLSeconds": 120,
    "controllers.shootCare.concurrentSyncs": 20,
    "controllers.shootCare.syncPeriod": MINUTE,
    "controllers.shootCare.staleExtensionHealthChecks.enabled": True,
    "controllers.shootCare.staleExtensionHealthChecks.threshold": 5 * MINUTE,
    "controllers.shootCare.managedResourceProgressingThreshold": None,
    "controllers.shootCare.conditionThresholds": (),
    "controllers.shootCare.webhookRemediatorEnabled": False,
    "controllers.shootState.concurrentSyncs": 5,
    "controllers.shootState.syncPeriod": 6 * HOUR,
    "controllers.shootStatus.concurrentSyncs": 5,
    "controllers.networkPolicy.concurrentSyncs": 5,
    "controllers.networkPolicy.additionalNamespaceSelectors": (),
    "controllers.managedSeed.concurrentSyncs": 20,
    "controllers.managedSeed.syncPeriod": HOUR,
    "controllers.managedSeed.waitSyncPeriod": 15 * SECOND,
    "controllers.managedSeed.syncJitterPeriod": 5 * MINUTE,
    "controllers.managedSeed.jitterUpdates": False,
    "controllers.tokenRequestor.concurrentSyncs": 5,
    "controllers.tokenRequestorWorkloadIdentity.concurrentSyncs": 5,
    "controllers.tokenRequestorWorkloadIdentity.tokenExpirationDuration": 6 * HOUR,
    "controllers.vpaEvictionRequirements.concurrentSyncs": 5,
    "logging.enabled": False,
    "logging.vali.garden.storage": "100Gi",
    "logging.victoriaLogs.garden.storage": "100Gi",
    "logging.shootNodeLogging.shootPurposes": (),
    "sni.ingress.serviceExternalIP": None,
    "exposureClassHandlers": (),
    "etcdConfig.etcdController.workers": 50,
    "etcdConfig.custodianController.workers": 10,
    "etcdConfig.backupCompactionController.workers": 3,
    "etcdConfig.backupCompactionController.enableBackupCompaction": False,
    "etcdConfig.backupCompactionController.eventsThreshold": 1000000,
    "etcdConfig.backupCompactionController.activeDeadlineDuration": None,
    "etcdConfig.backupCompactionController.metricsScrapeWaitDuration": 60 * SECOND,
    "etcdConfig.backupLeaderElection.reelectionPeriod": None,
    "etcdConfig.backupLeaderElection.etcdConnectionTimeout": None,
    "etcdConfig.featureGates": {},
    "etcdConfig.deltaSnapshotRetentionPeriod": None,
    "monitoring.shoot.enabled": True,
    "monitoring.shoot.remoteWrite": None,
    "monitoring.shoot.externalLabels": {},
}


@pytest.mark.parametrize("path", DEFAULTS)
def test_default(tmp_path: Path, path: str) -> None:
    """Contract core 2.1, 2.2, 2.3, 2.4, 13.1.8, 13 W2: each row's default, also where the row is null; shootStatus has one, too."""
    assert at(load(tmp_path), path) == DEFAULTS[path]
    if path != "controllers.shootCare.staleExtensionHealthChecks.enabled":  # a block that is there is another case
        assert at(load(tmp_path, **nested(path, None)), path) == DEFAULTS[path]


def test_defaults_of_absent_blocks(tmp_path: Path) -> None:
    """Contract core 2.3: a block that is there without `enabled` does not check stale extensions; an absent one does."""
    found = load(tmp_path, controllers={"shootCare": {"staleExtensionHealthChecks": {"threshold": "1m"}}})
    assert found.controllers.shoot_care.stale_extension_health_checks.enabled is False


@pytest.mark.parametrize(
    ("path", "zero"),
    [
        ("gardenClientConnection.qps", 0),
        ("seedClientConnection.burst", 0),
        ("logLevel", ""),
        ("logFormat", ""),
        ("server.healthProbes.port", 0),
        ("server.metrics.port", 0),
        ("leaderElection.leaseDuration", "0s"),
        ("leaderElection.renewDeadline", "0s"),
        ("leaderElection.retryPeriod", "0s"),
        ("leaderElection.resourceLock", ""),
        ("leaderElection.resourceName", ""),
        ("leaderElection.resourceNamespace", ""),
    ],
)
def test_zero_that_means_the_default(tmp_path: Path, path: str, zero: object) -> None:
    """Contract core 2: where Go has no pointer, the zero value is the default."""
    assert at(load(tmp_path, **nested(path, zero)), path) == DEFAULTS[path]


@pytest.mark.parametrize(
    ("path", "zero"),
    [
        ("controllers.shootState.concurrentSyncs", 0),
        ("controllers.shoot.concurrentSyncs", 0),
        ("leaderElection.leaderElect", False),
        ("monitoring.shoot.enabled", False),
        ("nodeToleration.defaultNotReadyTolerationSeconds", 0),
    ],
)
def test_zero_that_means_zero(tmp_path: Path, path: str, zero: object) -> None:
    """Contract core 2: pointer fields distinguish absent from zero."""
    assert at(load(tmp_path, **nested(path, zero)), path) == zero


def test_logging_follows_its_switch(tmp_path: Path) -> None:
    """Contract core 2.4: vali, victoriaLogs and shootEventLogging are as logging.enabled unless they say otherwise."""
    for enabled in (True, False):
        found = load(tmp_path, logging={"enabled": enabled}).logging
        assert (found.vali_enabled, found.victoria_logs_enabled, found.shoot_event_logging_enabled) == (enabled,) * 3
    own = {"vali": {"enabled": False}, "victoriaLogs": {"enabled": False}, "shootEventLogging": {"enabled": False}}
    found = load(tmp_path, logging={"enabled": True, **own}).logging
    assert (found.vali_enabled, found.victoria_logs_enabled, found.shoot_event_logging_enabled) == (False,) * 3


def test_gateway(tmp_path: Path) -> None:
    """Contract core 2.4: sni.ingress defaults; labels only where nothing is said about them."""
    found = load(tmp_path).sni.effective
    assert (found.namespace, found.service_name) == ("istio-ingress", "istio-ingressgateway")
    assert found.labels == {"app": "istio-ingressgateway", "istio": "ingressgateway"}
    assert load(tmp_path, sni={"ingress": {"labels": {}}}).sni.effective.labels == {}
    own = {"namespace": "n", "serviceName": "s", "labels": {"a": "b"}, "serviceExternalIP": "192.0.2.1"}
    found = load(tmp_path, sni={"ingress": own}).sni.effective
    assert found.model_dump(by_alias=True) == own


def test_gateway_of_a_handler(tmp_path: Path) -> None:
    """Contract core 2.4: a handler's own defaults come first; empty labels are its default, too."""
    handlers = [{"name": "internet"}, {"name": "x", "sni": {"ingress": {"labels": {}, "namespace": "n"}}}]
    first, second = (
        handler.effective for handler in load(tmp_path, exposureClassHandlers=handlers).exposure_class_handlers
    )
    labels = {"app": "istio-ingressgateway", "gardener.cloud/role": "exposureclass-handler"}
    assert (first.namespace, first.service_name, first.labels) == (
        "istio-ingress-handler-internet",
        "istio-ingressgateway",
        labels,
    )
    assert (second.namespace, second.labels) == ("n", labels)


def test_negative_grace_period_is_none(tmp_path: Path) -> None:
    """Contract core 2.3: deletionGracePeriodHours is 0 also when negative."""
    assert load(tmp_path, controllers={"backupEntry": {"deletionGracePeriodHours": -3}}).controllers.backup_entry == (
        load(tmp_path).controllers.backup_entry
    )


REF = {"name": "a", "namespace": "b"}

RULES: list[tuple[str, object]] = [
    ("apiVersion", "gardenlet.config.gardener.cloud/v1"),
    ("kind", "Other"),
    ("gardenClientConnection.burst", -1),
    ("gardenClientConnection.qps", -1),
    ("seedClientConnection.burst", -1),
    ("seedClientConnection.qps", -0.5),
    ("shootClientConnection.burst", -1),
    ("shootClientConnection.qps", -1),
    ("gardenClientConnection.kubeconfig", "/nowhere/kubeconfig"),
    ("gardenClientConnection.gardenClusterAddress", "garden.example"),
    ("gardenClientConnection.gardenClusterAddress", "https://"),
    ("gardenClientConnection.gardenClusterAddress", "https://garden:port"),
    ("gardenClientConnection.gardenClusterCACert", "-----BEGIN"),
    ("gardenClientConnection.kubeconfigValidity.validity", "9m59s"),
    ("gardenClientConnection.kubeconfigValidity.autoRotationJitterPercentageMin", 0),
    ("gardenClientConnection.kubeconfigValidity.autoRotationJitterPercentageMin", 90),
    ("gardenClientConnection.kubeconfigValidity.autoRotationJitterPercentageMax", 101),
    ("logLevel", "warn"),
    ("logFormat", "xml"),
    ("server.healthProbes.port", 70000),
    ("server.healthProbes.port", -1),
    ("server.metrics.port", 65536),
    ("server.metrics.port", 2728),
    ("featureGates.Unknown", True),
    ("featureGates.DoNotCopyBackupCredentials", False),
    ("seedSelector", {}),
    ("nodeToleration.defaultNotReadyTolerationSeconds", -1),
    ("nodeToleration.defaultUnreachableTolerationSeconds", -1),
    ("leaderElection.leaseDuration", "10s"),
    ("leaderElection.leaseDuration", "10.5s"),
    ("leaderElection.resourceLock", "endpoints"),
    ("leaderElection.renewDeadline", "2.4s"),
    ("controllers.cacheSyncTimeout", "0s"),
    ("controllers.backupBucket.concurrentSyncs", -1),
    ("controllers.backupEntry.concurrentSyncs", -1),
    ("controllers.bastion.concurrentSyncs", -1),
    ("controllers.controllerInstallation.concurrentSyncs", -1),
    ("controllers.controllerInstallationCare.concurrentSyncs", -1),
    ("controllers.controllerInstallationCare.syncPeriod", "0s"),
    ("controllers.controllerInstallationRequired.concurrentSyncs", -1),
    ("controllers.gardenlet.syncPeriod", "0s"),
    ("controllers.seed.syncPeriod", "0s"),
    ("controllers.seed.leaseResyncSeconds", 0),
    ("controllers.seed.leaseResyncMissThreshold", 0),
    ("controllers.seedCare.syncPeriod", "-1s"),
    ("controllers.shoot.concurrentSyncs", -1),
    ("controllers.shoot.syncPeriod", "-1s"),
    ("controllers.shoot.retryDuration", "-1s"),
    ("controllers.shoot.progressReportPeriod", "-1s"),
    ("controllers.shoot.dnsEntryTTLSeconds", 29),
    ("controllers.shoot.dnsEntryTTLSeconds", 601),
    ("controllers.shootCare.concurrentSyncs", -1),
    ("controllers.shootCare.syncPeriod", "-1s"),
    ("controllers.shootCare.staleExtensionHealthChecks.threshold", "-1s"),
    ("controllers.shootCare.managedResourceProgressingThreshold", "-1s"),
    ("controllers.shootState.concurrentSyncs", -1),
    ("controllers.shootStatus.concurrentSyncs", -1),
    ("controllers.networkPolicy.concurrentSyncs", -1),
    ("controllers.managedSeed.concurrentSyncs", -1),
    ("controllers.managedSeed.syncPeriod", "-1s"),
    ("controllers.managedSeed.waitSyncPeriod", "-1s"),
    ("controllers.managedSeed.syncJitterPeriod", "-1s"),
    ("controllers.tokenRequestor.concurrentSyncs", -1),
    ("controllers.tokenRequestorWorkloadIdentity.concurrentSyncs", -1),
    ("controllers.tokenRequestorWorkloadIdentity.tokenExpirationDuration", "9m"),
    ("controllers.vpaEvictionRequirements.concurrentSyncs", -1),
    ("controllers.seed.syncPeriod", 60),
    ("logging.vali.garden.storage", "much"),
    ("logging.victoriaLogs.garden.storage", "1 Gi"),
    ("sni.ingress.serviceExternalIP", "gateway.example"),
    ("etcdConfig.etcdController.workers", "many"),
]


@pytest.mark.parametrize(("path", "value"), RULES)
def test_each_rule_is_reported_with_its_path(tmp_path: Path, path: str, value: object) -> None:
    """Contract core 1.8, 2.1, 2.2, 2.3, 2.4, 13.1.8, 13 W20: each rule, ours included, is one problem that starts with the JSON path."""
    found = problems(lambda: load(tmp_path, **nested(path, value)))
    assert [problem.split(":")[0] for problem in found] == [path]


ENTRIES: list[tuple[dict[str, Any], list[str]]] = [
    (
        nested("gardenClientConnection.bootstrapKubeconfig", {"name": "a"}),
        ["gardenClientConnection.bootstrapKubeconfig.namespace"],
    ),
    (
        nested("gardenClientConnection.kubeconfigSecret", {"namespace": "a"}),
        ["gardenClientConnection.kubeconfigSecret.name"],
    ),
    (
        {
            "resources": {
                "capacity": {"shoots": 5, "x": "1Gi"},
                "reserved": {"shoots": "6", "x": "1025Mi", "y": 1, "z": "?"},
            }
        },
        [
            "resources.reserved.z",
            "resources.reserved.y",
            "resources.reserved.z",
            "resources.reserved.shoots",
            "resources.reserved.x",
        ],
    ),
    (
        nested("controllers.seedCare.conditionThresholds", [{"type": "Other", "duration": "-1s"}]),
        ["controllers.seedCare.conditionThresholds[0].duration", "controllers.seedCare.conditionThresholds[0].type"],
    ),
    (
        nested("controllers.shootCare.conditionThresholds", [{"type": "Any", "duration": "1m"}, {"duration": "-1m"}]),
        ["controllers.shootCare.conditionThresholds[1].duration"],
    ),
    (
        nested("controllers.backupEntry", {"deletionGracePeriodShootPurposes": ["production", "fun"]}),
        [
            "controllers.backupEntry.deletionGracePeriodShootPurposes",
            "controllers.backupEntry.deletionGracePeriodShootPurposes[1]",
        ],
    ),
    (
        nested("controllers.networkPolicy.additionalNamespaceSelectors", [{"matchLabels": {"a b": "c"}}]),
        ["controllers.networkPolicy.additionalNamespaceSelectors[0].matchLabels.a b"],
    ),
    (
        {"exposureClassHandlers": [{"name": "Up"}, {"name": "ok", "loadBalancerService": {"class": ""}}]},
        ["exposureClassHandlers[0].name", "exposureClassHandlers[1].loadBalancerService.class"],
    ),
    (
        {"exposureClassHandlers": [{"name": "ok", "sni": {"ingress": {"serviceExternalIP": "x"}}}]},
        ["exposureClassHandlers[0].sni.ingress.serviceExternalIP"],
    ),
    (
        {"leaderElection": {"leaseDuration": "-1s", "renewDeadline": "-2s", "retryPeriod": "-3s"}},
        ["leaderElection.leaseDuration", "leaderElection.renewDeadline", "leaderElection.retryPeriod"],
    ),
    ({"seedConfig": {"spec": {"dns": {"internal": INTERNAL}}}}, ["seedConfig.metadata.name"]),
    ({"seedConfig": None}, ["seedConfig"]),
]


@pytest.mark.parametrize(("changes", "paths"), ENTRIES)
def test_rules_over_several_fields(tmp_path: Path, changes: dict[str, Any], paths: list[str]) -> None:
    """Contract core 1.1, 2.1, 2.3, 2.4: rules over lists and over more than one field name each of them."""
    assert [problem.split(":")[0] for problem in problems(lambda: load(tmp_path, **changes))] == paths


VALID: list[dict[str, Any]] = [
    {"gardenClientConnection": {"gardenClusterCACert": "none", "kubeconfigSecret": REF, "kubeconfig": "/nowhere"}},
    {"gardenClientConnection": {"gardenClusterCACert": "bm9uZQ==", "gardenClusterAddress": "https://192.0.2.1:6443"}},
    {"leaderElection": {"leaderElect": False, "leaseDuration": "1s", "resourceLock": "x"}},
    {"featureGates": {"DefaultSeccompProfile": True, "AllAlpha": True, "InPlaceNodeUpdates": True}},
    {"resources": {"capacity": {"shoots": 250}, "reserved": {"shoots": "250"}}},
    {"controllers": {"backupEntry": {"deletionGracePeriodHours": 1, "deletionGracePeriodShootPurposes": ["testing"]}}},
    {"exposureClassHandlers": [{"name": "a", "loadBalancerService": {"class": "example.org/lb"}}]},
    {"sni": {"ingress": {"serviceExternalIP": "2001:db8::1"}}},
    {"gardenClientConnection": {"qps": 5, "kubeconfigValidity": {"validity": "10m"}}},
]


@pytest.mark.parametrize("changes", VALID)
def test_what_is_accepted(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Contract core 1.8, 2.1, 2.2, 2.3, 2.4: the other side of each rule."""
    load(tmp_path, **changes)


def test_times_of_the_elector(tmp_path: Path) -> None:
    """Contract core 2.2: what the rules accept, the elector accepts, up to the last tenth."""
    found = load(tmp_path, leaderElection={"leaseDuration": "3.9s", "renewDeadline": "2.5s", "retryPeriod": "2.08s"})
    assert found.leader_election.times == ElectionTimes(3.9 * SECOND, 2.5 * SECOND, 2.08 * SECOND)


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    """Contract core 2: mistakes in several places are lines of one error; so are values of the wrong type."""
    assert len(problems(lambda: load(tmp_path, logLevel="x", logFormat="y", seedSelector={}))) == 3
    changes = {"server": {"metrics": {"port": "x"}}, "logging": 5}
    assert len(problems(lambda: load(tmp_path, **changes))) == 2


def test_self_hosted_mode_excludes_a_seed(tmp_path: Path) -> None:
    """Contract core 1.9, 13 W3: in kube-system there must be no seedConfig, elsewhere there must be one."""
    without = {key: value for key, value in MINIMAL.items() if key != "seedConfig"}
    read(tmp_path, without, NAMESPACE="kube-system")
    found = problems(lambda: read(tmp_path, MINIMAL, NAMESPACE="kube-system"))
    assert [problem.split(":")[0] for problem in found] == ["seedConfig"]
    assert problems(lambda: read(tmp_path, without, NAMESPACE="garden")) == ["seedConfig: required"]


def test_environment_replaces_kubeconfigs(tmp_path: Path) -> None:
    """Contract core 1.1: GARDEN_KUBECONFIG and KUBECONFIG win over the file; empty ones do not."""
    garden = tmp_path / "garden"
    garden.write_text("{}")
    changes = {"gardenClientConnection": {"kubeconfig": "/nowhere"}, "seedClientConnection": {"kubeconfig": "/seed"}}
    found = read(tmp_path, {**MINIMAL, **changes}, GARDEN_KUBECONFIG=str(garden), KUBECONFIG="/other")
    assert found.garden_client_connection.kubeconfig == str(garden)
    assert found.seed_client_connection.kubeconfig == "/other"
    changes["gardenClientConnection"]["kubeconfig"] = str(garden)
    found = read(tmp_path, {**MINIMAL, **changes}, GARDEN_KUBECONFIG="", KUBECONFIG="")
    assert found.seed_client_connection.kubeconfig == "/seed"


def test_what_has_no_effect_is_said(tmp_path: Path) -> None:
    """Contract core 1.1, 1.8, 2.1 (ours): unknown keys with their paths, other components' gates, and protobuf; all accepted."""
    with structlog.testing.capture_logs() as logs:
        load(
            tmp_path,
            future=1,
            controllers={"seed": {"new": 1}, "seedCare": {"conditionThresholds": [{"type": "GardenletReady", "x": 1}]}},
            featureGates={"InPlaceNodeUpdates": True},
            seedClientConnection={"contentType": "application/vnd.kubernetes.protobuf", "more": 1},
            exposureClassHandlers=[{"name": "a", "sni": {"gateway": 1}}],
        )
    keys = [line["key"] for line in logs if line["event"] == "Configuration has an unknown key"]
    assert sorted(keys) == [
        "controllers.seed.new",
        "controllers.seedCare.conditionThresholds[0].x",
        "exposureClassHandlers[0].sni.gateway",
        "future",
        "seedClientConnection.more",
    ]
    assert [line["featureGate"] for line in logs if "featureGate" in line] == ["InPlaceNodeUpdates"]
    assert [line["connection"] for line in logs if "connection" in line] == ["seedClientConnection"]


def test_what_the_chart_ships_is_accepted(tmp_path: Path) -> None:
    """Contract core 0, controllers 1.1: the chart's values where they differ from the defaults (D11)."""
    minute = [{"type": name, "duration": "1m"} for name in ("APIServerAvailable", "ControlPlaneHealthy")]
    found = load(
        tmp_path,
        gardenClientConnection={"qps": 100, "burst": 130},
        shootClientConnection={"qps": 25, "burst": 50},
        resources={"capacity": {"shoots": 250}},
        nodeToleration={"defaultNotReadyTolerationSeconds": 60, "defaultUnreachableTolerationSeconds": 60},
        controllers={
            "seed": {"syncPeriod": "1h"},
            "seedCare": {
                "syncPeriod": "30s",
                "conditionThresholds": [{"type": "SeedSystemComponentsHealthy", "duration": "1m"}],
            },
            "shootCare": {
                "concurrentSyncs": 5,
                "syncPeriod": "30s",
                "managedResourceProgressingThreshold": "1h",
                "staleExtensionHealthChecks": {"enabled": True, "threshold": "5m"},
                "conditionThresholds": [*minute, {"type": "EveryNodeReady", "duration": "5m"}],
            },
            "managedSeed": {"concurrentSyncs": 5},
        },
    )
    assert found.controllers.seed.sync_period == HOUR
    assert found.controllers.shoot_care.condition_thresholds[2].duration == 5 * MINUTE
    assert found.controllers.seed_care.condition_thresholds[0].type == "SeedSystemComponentsHealthy"


def test_the_seeds_spec_is_kept_as_it_is(tmp_path: Path) -> None:
    """Contract core 2.1, 5.2: the spec goes into the garden verbatim, with fields that we do not know."""
    spec = {"dns": {"internal": INTERNAL}, "new": {"field": [1, None]}, "networks": {"pods": "10.0.0.0/16"}}
    found = load(tmp_path, seedConfig={"metadata": {"name": "s", "labels": {"a": "b"}}, "spec": spec})
    assert found.seed_config is not None
    assert found.seed_config.spec == spec
    assert found.seed_config.metadata.labels == {"a": "b"}
