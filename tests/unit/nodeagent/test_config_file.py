"""Writing the configuration file."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from agents.core.config import ConfigError
from agents.core.generations import Generations
from nodeagent import config, config_file

RENDERED: dict[str, Any] = {
    "apiVersion": "nodeagent.config.gardener.cloud/v1alpha1",
    "kind": "NodeAgentConfiguration",
    "clientConnection": {"acceptContentTypes": "", "burst": 0, "contentType": "", "kubeconfig": "", "qps": 0},
    "logLevel": "",
    "logFormat": "",
    "server": {},
    "debugging": None,
    "apiServer": {"server": "https://api.example", "caFile": "/ca.crt", "newer": {"field": [1]}},
    "controllers": {
        "operatingSystemConfig": {"secretName": "old", "kubernetesVersion": "1.34.4"},
        "token": {"syncPeriod": "12h0m0s", "syncConfigs": [{"secretName": "s", "path": "/p"}]},
        "future": {"on": False},
    },
}


def write(tmp_path: Path, document: object) -> Path:
    """Write a configuration file as gardenlet renders it."""
    path = tmp_path / "config-v1.150.0.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_the_defaulted_configuration_is_written_0600(tmp_path: Path) -> None:
    """Contract 2, 7.7: all defaults are filled in for the Go agent, unset ones too; what we do not know is kept."""
    path = write(tmp_path, RENDERED)
    path.chmod(0o644)
    before = config.load(path)
    config_file.write_secret_name(path, "new", Generations(tmp_path / "generations"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert yaml.safe_load(path.read_text()) == {
        "apiVersion": "nodeagent.config.gardener.cloud/v1alpha1",
        "kind": "NodeAgentConfiguration",
        "clientConnection": {"acceptContentTypes": "", "burst": 100, "contentType": "", "kubeconfig": "", "qps": 50.0},
        "logLevel": "info",
        "logFormat": "json",
        "server": {"healthProbes": {"bindAddress": "", "port": 2751}, "metrics": {"bindAddress": "", "port": 2752}},
        "debugging": None,
        "apiServer": {"server": "https://api.example", "caFile": "/ca.crt", "caBundle": "", "newer": {"field": [1]}},
        "controllers": {
            "operatingSystemConfig": {"secretName": "new", "kubernetesVersion": "1.34.4", "syncPeriod": "10m0s"},
            "token": {"syncPeriod": "12h0m0s", "syncConfigs": [{"secretName": "s", "path": "/p"}]},
            "systemdUnitCheck": {"syncPeriod": "1m0s", "stuckThreshold": "5m0s"},
            "future": {"on": False},
        },
    }
    after = config.load(path)
    assert config_file.secret_name(path, Generations(tmp_path / "generations")) == "new"
    same = after.controllers.operating_system_config.model_copy(update={"secret_name": "old"})
    assert after.controllers.model_copy(update={"operating_system_config": same}) == before.controllers
    assert after.server.health_address == before.server.health_address


def test_explicit_values_survive(tmp_path: Path) -> None:
    """Contract 7.7: settings that were chosen survive, those of systemdUnitCheck too."""
    document = {
        **RENDERED,
        "logLevel": "debug",
        "debugging": {"enableProfiling": True},
        "server": {"metrics": {"bindAddress": "127.0.0.1", "port": 9}},
        "controllers": {
            **RENDERED["controllers"],
            "systemdUnitCheck": {"syncPeriod": "20s", "stuckThreshold": "45s"},
        },
    }
    path = write(tmp_path, document)
    config_file.write_secret_name(path, "new", Generations(tmp_path / "generations"))
    written = yaml.safe_load(path.read_text())
    assert written["controllers"]["systemdUnitCheck"] == {"syncPeriod": "20s", "stuckThreshold": "45s"}
    assert written["server"]["metrics"] == {"bindAddress": "127.0.0.1", "port": 9}
    assert written["debugging"] == {"enableProfiling": True, "enableContentionProfiling": False}
    assert written["logLevel"] == "debug"


def test_w06_a_configuration_that_would_not_be_valid_is_never_written(tmp_path: Path) -> None:
    """Contract 9 W6: an empty name is refused before the file is touched, and so is a file that cannot be read."""
    path = write(tmp_path, RENDERED)
    before = path.read_bytes()
    with pytest.raises(ConfigError) as caught:
        config_file.write_secret_name(path, "", Generations(tmp_path / "generations"))
    assert caught.value.problems == ["controllers.operatingSystemConfig.secretName: required"]
    assert path.read_bytes() == before
    path.write_text("{")
    with pytest.raises(ConfigError):
        config_file.write_secret_name(path, "new", Generations(tmp_path / "generations"))
    assert path.read_text() == "{"
