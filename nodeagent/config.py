"""`NodeAgentConfiguration`: fields, Gardener's defaults, validation, and where the file is found.

Source: gardener pkg/apis/config/nodeagent/v1alpha1, pkg/api/config/nodeagent/v1alpha1 (contract 1.3 and 2).
"""

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from agents.core.config import ConfigError, ConfigModel, Duration, parse_config, read_mapping, unknown_keys
from agents.core.logging import get_logger

log = get_logger(__name__)

API_VERSION = "nodeagent.config.gardener.cloud/v1alpha1"
KIND = "NodeAgentConfiguration"
SUPPORTED_MINORS = range(32, 37)
SHORTEST_SYNC = timedelta(seconds=15)
SHORTEST_STUCK = timedelta(seconds=30)
_VERSION = re.compile(r"^v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?$")
_CONFIG_FILE = re.compile(r"^config-(.+)\.yaml$")


class _Model(ConfigModel):
    """gardenlet renders "", 0 and null for what is not set; all three mean the default."""

    @model_validator(mode="before")
    @classmethod
    def _drop_unset(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {key: item for key, item in value.items() if item not in (None, "", 0) or item is False}


class ClientConnection(_Model):
    """How the API server is reached when a kubeconfig is given explicitly."""

    kubeconfig: str = ""
    """Path of a kubeconfig that replaces the agent's own credentials."""
    accept_content_types: str = ""
    """Accepted and ignored: JSON is what we speak."""
    content_type: str = ""
    """Accepted and ignored: JSON is what we speak."""
    qps: float = 50.0
    """Requests per second, for an explicit kubeconfig and the bootstrap token."""
    burst: int = 100
    """Requests at once, likewise."""


class Endpoint(_Model):
    """Address of one server."""

    bind_address: str = ""
    """IP address to listen on; empty for all."""
    port: int = 0
    """TCP port."""


class Server(_Model):
    """Addresses of the two servers."""

    health_probes: Endpoint = Endpoint()
    """`/healthz` and `/readyz`; port 2751 unless set."""
    metrics: Endpoint = Endpoint()
    """`/metrics`; port 2752 unless set."""

    @cached_property
    def health_address(self) -> tuple[str, int]:
        """Host and port of the health probes."""
        return self.health_probes.bind_address, self.health_probes.port or 2751

    @cached_property
    def metrics_address(self) -> tuple[str, int]:
        """Host and port of the metrics."""
        return self.metrics.bind_address, self.metrics.port or 2752


class Debugging(_Model):
    """Accepted for compatibility; there are no Go profiles to serve."""

    enable_profiling: bool = False
    enable_contention_profiling: bool = False


class ApiServer(_Model):
    """The API server that issues the first certificate and that the kubelet joins."""

    server: str
    """URL or host name."""
    ca_file: str = ""
    """Path of the CA bundle on the node."""
    ca_bundle: str = ""
    """Base64 of a CA bundle; configurations before v1.147 have it instead of `caFile`."""


class Bootstrap(_Model):
    """Only in the configuration that user data brings."""

    kubelet_data_volume_size: int | None = None
    """Size in bytes of the disk that becomes /var/lib/kubelet; unset if that stays on the system's disk."""


class Drift(_Model):
    """What happens to managed files and units that somebody else changed; not known to Gardener, so unset as a rule."""

    mode: Literal["repair", "report"] = "repair"
    """`report`: events only."""


class OperatingSystemConfigController(_Model):
    """Which OperatingSystemConfig is applied, and how often it is looked at."""

    secret_name: str = ""
    """Secret in kube-system."""
    kubernetes_version: str = ""
    """Semantic version that goes onto the Node as a label."""
    sync_period: Duration = timedelta(minutes=10)
    """At least 15s."""
    drift: Drift = Drift()


class TokenSync(_Model):
    """One token that is copied to one file."""

    secret_name: str = ""
    """Secret in kube-system with key `token`."""
    path: str = ""
    """File on the node."""


class TokenController(_Model):
    """Which tokens are kept on the node."""

    sync_configs: tuple[TokenSync, ...] = Field(default=(), strict=False)
    sync_period: Duration = timedelta(hours=1)
    """At least 15s."""


class SystemdUnitCheck(_Model):
    """How units are watched."""

    sync_period: Duration = timedelta(minutes=1)
    """At least 15s."""
    stuck_threshold: Duration = timedelta(minutes=5)
    """At least 30s."""


class Controllers(_Model):
    """Settings of each controller."""

    operating_system_config: OperatingSystemConfigController = OperatingSystemConfigController()
    token: TokenController = TokenController()
    systemd_unit_check: SystemdUnitCheck = SystemdUnitCheck()


class NodeAgentConfiguration(_Model):
    """The whole file."""

    api_version: Literal["nodeagent.config.gardener.cloud/v1alpha1"]
    kind: Literal["NodeAgentConfiguration"]
    client_connection: ClientConnection = ClientConnection()
    log_level: str = "info"
    log_format: str = "json"
    server: Server = Server()
    debugging: Debugging = Debugging()
    feature_gates: dict[str, bool] = Field(default_factory=dict)
    api_server: ApiServer
    bootstrap: Bootstrap = Bootstrap()
    controllers: Controllers


def load(path: Path, *, check_kubernetes_version: bool = True) -> NodeAgentConfiguration:
    """Read, default and validate the configuration.

    Raises:
        ConfigError: with every problem and its JSON path.
    """
    return parse(path, read_mapping(path), check_kubernetes_version=check_kubernetes_version)


def parse(path: Path, mapping: Mapping[str, object], *, check_kubernetes_version: bool) -> NodeAgentConfiguration:
    """Default and validate what was read; same errors as `load`."""
    config = parse_config(path, mapping, NodeAgentConfiguration)
    if problems := list(validate(config, check_kubernetes_version=check_kubernetes_version)):
        raise ConfigError(path, problems)
    if unknown := list(unknown_keys(mapping, NodeAgentConfiguration)):
        log.info("Configuration has unknown keys", path=str(path), keys=unknown)
    return config


def validate(config: NodeAgentConfiguration, *, check_kubernetes_version: bool) -> Iterator[str]:
    """Yield every problem as `json.path: reason`."""
    if config.log_level not in ("debug", "info", "error"):
        yield "logLevel: must be one of debug, info, error"
    if config.log_format not in ("json", "text"):
        yield "logFormat: must be one of json, text"
    if config.client_connection.burst < 0:
        yield "clientConnection.burst: must not be negative"
    for gate in config.feature_gates:
        yield f"featureGates.{gate}: unknown feature gate"
    yield from _validate_osc(config.controllers.operating_system_config, check_kubernetes_version)
    yield from _validate_tokens(config.controllers.token)
    unit_check = config.controllers.systemd_unit_check
    if unit_check.sync_period < SHORTEST_SYNC:
        yield "controllers.systemdUnitCheck.syncPeriod: must be at least 15s"
    if unit_check.stuck_threshold < SHORTEST_STUCK:
        yield "controllers.systemdUnitCheck.stuckThreshold: must be at least 30s"


def _validate_osc(osc: OperatingSystemConfigController, check_kubernetes_version: bool) -> Iterator[str]:  # noqa: FBT001
    path = "controllers.operatingSystemConfig"
    if not osc.secret_name:
        yield f"{path}.secretName: required"
    if not osc.kubernetes_version:
        yield f"{path}.kubernetesVersion: required"
    elif (version := parse_version(osc.kubernetes_version)) is None:
        yield f"{path}.kubernetesVersion: not a semantic version like 1.34.4"
    elif check_kubernetes_version and (version[0] != 1 or version[1] not in SUPPORTED_MINORS):
        yield f"{path}.kubernetesVersion: supported are 1.{SUPPORTED_MINORS[0]} to 1.{SUPPORTED_MINORS[-1]}"
    if osc.sync_period < SHORTEST_SYNC:
        yield f"{path}.syncPeriod: must be at least 15s"


def _validate_tokens(token: TokenController) -> Iterator[str]:
    path = "controllers.token"
    seen: set[str] = set()
    for index, sync in enumerate(token.sync_configs):
        if not sync.secret_name:
            yield f"{path}.syncConfigs[{index}].secretName: required"
        if not sync.path:
            yield f"{path}.syncConfigs[{index}].path: required"
        elif not Path(sync.path).is_absolute() or ".." in Path(sync.path).parts:
            yield f"{path}.syncConfigs[{index}].path: must be absolute and clean"
        elif sync.path in seen:
            yield f"{path}.syncConfigs[{index}].path: used twice"
        seen.add(sync.path)
    if token.sync_period < SHORTEST_SYNC:
        yield f"{path}.syncPeriod: must be at least 15s"


def parse_version(text: str) -> tuple[int, int, int, bool, str] | None:
    """Return a sortable key of a semantic version (release after its pre-releases), None if it is none."""
    if not (match := _VERSION.match(text)):
        return None
    major, minor, patch, pre = match.groups()
    return int(major), int(minor or 0), int(patch or 0), pre is None, pre or ""


def full_version(text: str) -> str:
    """Return a version with all three parts and without a leading `v`, as it goes onto the Node."""
    key = parse_version(text)
    if key is None:
        return text
    return f"{key[0]}.{key[1]}.{key[2]}" + (f"-{key[4]}" if key[4] else "")


def find(directory: Path, version: str) -> Path:
    """Return the configuration file for this Gardener version.

    That is `config-<version>.yaml`. If exactly this file is missing: the only `config-*.yaml` there, or of several the
    highest version not above ours, else the highest; both versions are logged. A file that exists is never passed over.

    Raises:
        ConfigError: there is none.
    """
    exact = directory / f"config-{version}.yaml"
    if exact.exists() or exact.is_symlink():
        return exact
    found: dict[tuple[int, int, int, bool, str], Path] = {}
    for path in sorted(directory.glob("config-*.yaml")):
        if (match := _CONFIG_FILE.match(path.name)) and (key := parse_version(match[1])) is not None:
            found[key] = path
    if not found:
        raise ConfigError(exact, ["cannot be read: No such file or directory, and no config-<version>.yaml beside it"])
    own = parse_version(version)
    candidates = [key for key in found if own is not None and key <= own] or list(found)
    chosen = found[max(candidates)]
    log.error("Configuration file of this version is missing, using another one", wanted=exact.name, found=chosen.name)
    return chosen
