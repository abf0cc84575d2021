"""The component configuration: defaults, validation, and which file is read."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from agents.core.config import ConfigError
from nodeagent import config

MINIMAL: dict[str, object] = {
    "apiVersion": "nodeagent.config.gardener.cloud/v1alpha1",
    "kind": "NodeAgentConfiguration",
    "apiServer": {"server": "api.example", "caFile": "/ca.crt"},
    "controllers": {"operatingSystemConfig": {"secretName": "osc", "kubernetesVersion": "1.34.4"}},
}
OSC = {"secretName": "osc", "kubernetesVersion": "1.34.4"}


def load(tmp_path: Path, **changes: object) -> config.NodeAgentConfiguration:
    """Load the minimal configuration with some top-level keys replaced."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, **changes}))
    return config.load(path)


def problems(call: Callable[[], object]) -> list[str]:
    """Return the problems of a configuration that is refused."""
    with pytest.raises(ConfigError) as caught:
        call()
    return caught.value.problems


def test_defaults_are_gardeners(tmp_path: Path) -> None:
    """Contract 2: every default of the component configuration equals Gardener's."""
    loaded = load(tmp_path)
    assert (loaded.log_level, loaded.log_format) == ("info", "json")
    assert (loaded.client_connection.qps, loaded.client_connection.burst) == (50, 100)
    assert loaded.server.health_address == ("", 2751)
    assert loaded.server.metrics_address == ("", 2752)
    assert loaded.controllers.operating_system_config.sync_period == timedelta(minutes=10)
    assert loaded.controllers.token.sync_period == timedelta(hours=1)
    assert loaded.controllers.systemd_unit_check.sync_period == timedelta(minutes=1)
    assert loaded.controllers.systemd_unit_check.stuck_threshold == timedelta(minutes=5)
    assert loaded.debugging.enable_profiling is False


def test_empty_strings_and_zeros_mean_the_default(tmp_path: Path) -> None:
    """Contract 2: gardenlet renders empty strings, zeros and empty objects for unset fields; they are the default."""
    loaded = load(
        tmp_path,
        logLevel="",
        logFormat="",
        clientConnection={"kubeconfig": "", "qps": 0, "burst": 0, "acceptContentTypes": "", "contentType": ""},
        server={"healthProbes": {"bindAddress": "", "port": 0}, "metrics": None},
        debugging=None,
        featureGates=None,
    )
    assert loaded == load(tmp_path)


def test_explicit_values_are_kept(tmp_path: Path) -> None:
    """What the file says wins over the default; an integer is a fine qps."""
    loaded = load(
        tmp_path,
        logLevel="debug",
        clientConnection={"qps": 5},
        server={"metrics": {"bindAddress": "127.0.0.1", "port": 9}},
    )
    assert (loaded.log_level, loaded.client_connection.qps) == ("debug", 5)
    assert loaded.server.metrics_address == ("127.0.0.1", 9)


def test_size_of_the_kubelets_data_volume_is_bytes_or_unset(tmp_path: Path) -> None:
    """Contract 2, 8.3: an integer of any size; absent, null and 0 are unset."""
    size = 5 * 1024**4
    assert load(tmp_path, bootstrap={"kubeletDataVolumeSize": size}).bootstrap.kubelet_data_volume_size == size
    for unset in ({}, {"kubeletDataVolumeSize": None}, {"kubeletDataVolumeSize": 0}):
        assert load(tmp_path, bootstrap=unset).bootstrap.kubelet_data_volume_size is None


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"logLevel": "warn"}, "logLevel"),
        ({"logFormat": "xml"}, "logFormat"),
        ({"clientConnection": {"burst": -1}}, "clientConnection.burst"),
        ({"clientConnection": {"burst": "many"}}, "clientConnection.burst"),
        ({"featureGates": {"Unknown": True}}, "featureGates.Unknown"),
        ({"kind": "Other"}, "kind"),
        ({"apiVersion": "v1"}, "apiVersion"),
        ({"apiServer": {}}, "apiServer.server"),
        ({"apiServer": 5}, "apiServer"),
        ({"server": {"metrics": {"port": "2752"}}}, "server.metrics.port"),
        ({"bootstrap": {"kubeletDataVolumeSize": "5Gi"}}, "bootstrap.kubeletDataVolumeSize"),
        (
            {"controllers": {"operatingSystemConfig": {**OSC, "secretName": ""}}},
            "controllers.operatingSystemConfig.secretName",
        ),
        (
            {"controllers": {"operatingSystemConfig": {"secretName": "x"}}},
            "controllers.operatingSystemConfig.kubernetesVersion",
        ),
        (
            {"controllers": {"operatingSystemConfig": {**OSC, "kubernetesVersion": "new"}}},
            "controllers.operatingSystemConfig.kubernetesVersion",
        ),
        (
            {"controllers": {"operatingSystemConfig": {**OSC, "kubernetesVersion": "1.31.9"}}},
            "controllers.operatingSystemConfig.kubernetesVersion",
        ),
        (
            {"controllers": {"operatingSystemConfig": {**OSC, "kubernetesVersion": "1.37.0"}}},
            "controllers.operatingSystemConfig.kubernetesVersion",
        ),
        (
            {"controllers": {"operatingSystemConfig": {**OSC, "syncPeriod": "14s"}}},
            "controllers.operatingSystemConfig.syncPeriod",
        ),
        (
            {"controllers": {"operatingSystemConfig": {**OSC, "syncPeriod": 60}}},
            "controllers.operatingSystemConfig.syncPeriod",
        ),
        (
            {"controllers": {"operatingSystemConfig": OSC, "token": {"syncPeriod": "1s"}}},
            "controllers.token.syncPeriod",
        ),
        (
            {"controllers": {"operatingSystemConfig": OSC, "token": {"syncConfigs": [{"path": "/a"}]}}},
            "controllers.token.syncConfigs[0].secretName",
        ),
        (
            {"controllers": {"operatingSystemConfig": OSC, "token": {"syncConfigs": [{"secretName": "a"}]}}},
            "controllers.token.syncConfigs[0].path",
        ),
        (
            {
                "controllers": {
                    "operatingSystemConfig": OSC,
                    "token": {"syncConfigs": [{"secretName": "a", "path": "a/../b"}]},
                }
            },
            "controllers.token.syncConfigs[0].path",
        ),
        (
            {"controllers": {"operatingSystemConfig": OSC, "systemdUnitCheck": {"syncPeriod": "1s"}}},
            "controllers.systemdUnitCheck.syncPeriod",
        ),
        (
            {"controllers": {"operatingSystemConfig": OSC, "systemdUnitCheck": {"stuckThreshold": "29s"}}},
            "controllers.systemdUnitCheck.stuckThreshold",
        ),
    ],
)
def test_each_rule_is_reported_with_its_path(tmp_path: Path, changes: dict[str, object], path: str) -> None:
    """Contract 2: each validation rule is one problem that starts with the JSON path."""
    found = problems(lambda: load(tmp_path, **changes))
    assert [problem.split(":")[0] for problem in found] == [path]


def test_duplicate_token_paths_are_refused_and_duplicate_secrets_are_not(tmp_path: Path) -> None:
    """Contract 2: duplicate paths are rejected, duplicate secretNames are not."""
    configs = [{"secretName": "a", "path": "/1"}, {"secretName": "a", "path": "/2"}, {"secretName": "b", "path": "/1"}]
    controllers = {"operatingSystemConfig": OSC, "token": {"syncConfigs": configs}}
    assert problems(lambda: load(tmp_path, controllers=controllers)) == [
        "controllers.token.syncConfigs[2].path: used twice"
    ]


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    """Two mistakes are two lines of one error."""
    assert len(problems(lambda: load(tmp_path, logLevel="warn", logFormat="xml"))) == 2


def test_version_check_can_be_switched_off(tmp_path: Path) -> None:
    """Contract 1.10: with the check switched off any semantic version is accepted."""
    path = tmp_path / "c"
    controllers = {"operatingSystemConfig": {**OSC, "kubernetesVersion": "2.0.0"}}
    path.write_text(yaml.safe_dump({**MINIMAL, "controllers": controllers}))
    loaded = config.load(path, check_kubernetes_version=False)
    assert loaded.controllers.operating_system_config.kubernetes_version == "2.0.0"


@pytest.mark.parametrize(
    ("text", "full"), [("1.34", "1.34.0"), ("v1.34.4", "1.34.4"), ("1.34.4-rc.1", "1.34.4-rc.1"), ("x", "x")]
)
def test_full_version_has_three_parts(text: str, full: str) -> None:
    """Contract 6.9: the version on the Node has all three parts."""
    assert config.full_version(text) == full


@pytest.mark.parametrize(
    ("present", "chosen"),
    [
        (["v1.150.0", "v1.151.0"], "v1.150.0"),
        (["v1.100.0"], "v1.100.0"),
        (["v1.148.0", "v1.149.9", "v1.151.0"], "v1.149.9"),
        (["v1.151.0", "v1.152.0"], "v1.152.0"),
        (["v1.150.0-dev", "v1.149.0"], "v1.150.0-dev"),
    ],
)
def test_find_falls_back_by_version(tmp_path: Path, present: list[str], chosen: str) -> None:
    """Contract 1.3: exact file first; else the highest version not above ours, else the highest."""
    for version in present:
        (tmp_path / f"config-{version}.yaml").write_text("{}")
    (tmp_path / "config-latest.yaml").write_text("{}")
    assert config.find(tmp_path, "v1.150.0").name == f"config-{chosen}.yaml"


def test_find_never_passes_over_the_exact_file(tmp_path: Path) -> None:
    """Contract 1.3: an exact file that exists is used even if it is a dangling link; reading it is then the error."""
    (tmp_path / "config-v1.149.0.yaml").write_text("{}")
    (tmp_path / "config-v1.150.0.yaml").symlink_to("nowhere")
    assert config.find(tmp_path, "v1.150.0").name == "config-v1.150.0.yaml"


def test_find_says_what_is_missing(tmp_path: Path) -> None:
    """Without any configuration file the wanted one is named."""
    with pytest.raises(ConfigError) as caught:
        config.find(tmp_path, "v1.150.0")
    assert caught.value.fields["path"] == str(tmp_path / "config-v1.150.0.yaml")
