"""What an update of a machine in place consists of: which of its parts are due.

Source: gardener pkg/nodeagent/controller/operatingsystemconfig/changes.go (contract 6.13). Pure: the version of the running
operating system is handed in.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime

from agents.core.errors import TerminalError
from agents.core.versions import Version, matches
from agents.core.yamlio import YamlError, load_yaml
from osc.codec import InvalidContent, decode_file_content
from osc.errors import InvalidOSC, Problem
from osc.types import CredentialRotation, CredentialsRotation, File, FileContent, Inline, OperatingSystemConfig

KUBELET_CONFIG = "/var/lib/kubelet/config/kubelet"

_EVICTION = ("memory.available", "imagefs.available", "imagefs.inodesFree", "nodefs.available", "nodefs.inodesFree")
_RESERVED = ("cpu", "memory", "ephemeral-storage", "pid")
_QUANTITY = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")


class UnusableKubeletConfig(TerminalError):
    """The kubelet's configuration inside an OSC cannot be read, so what changed in it is not known (W35)."""


@dataclass(frozen=True, slots=True)
class InPlaceChanges:
    """Which parts of an update in place are left to do."""

    operating_system: bool = False
    kubelet_minor_version: bool = False
    kubelet_config: bool = False
    kubelet_cpu_manager_policy: bool = False
    kubelet_certificate_authorities: bool = False
    own_certificate_authorities: bool = False
    service_account_key: bool = False

    def __bool__(self) -> bool:
        return any(getattr(self, item.name) for item in fields(self))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts that are left."""
        return tuple(item.name for item in fields(self) if getattr(self, item.name))

    def without(self, names: Iterable[str]) -> "InPlaceChanges":
        """Return what is left without these parts."""
        done = frozenset(names)
        return InPlaceChanges(
            **{item.name: getattr(self, item.name) and item.name not in done for item in fields(self)}
        )

    @property
    def kubelet(self) -> bool:
        """Whether the kubelet gets another version or configuration."""
        return self.kubelet_minor_version or self.kubelet_config or self.kubelet_cpu_manager_policy


KUBELET_PARTS = ("kubelet_minor_version", "kubelet_config", "kubelet_cpu_manager_policy")


def in_place_changes(
    new: OperatingSystemConfig, old: OperatingSystemConfig | None, operating_system_version: str
) -> InPlaceChanges:
    """Return what is due; nothing unless both OSCs are for updates in place.

    Args:
        new: what is desired.
        old: what was applied last; None on the first run.
        operating_system_version: of the running machine.

    Raises:
        InvalidOSC: the new OSC has no readable configuration of the kubelet.
        InvalidVersion: a version cannot be read.
    """
    wanted = new.spec.in_place_updates
    before = old.spec.in_place_updates if old is not None else None
    if wanted is None or old is None or before is None:
        return InPlaceChanges()
    config, policy = _kubelet_changes(old, new)
    other_kubelet = before.kubelet != wanted.kubelet
    authorities = _rotated(before.credentials_rotation, wanted.credentials_rotation, "certificate_authorities")
    return InPlaceChanges(
        operating_system=not matches(operating_system_version, wanted.operating_system_version),
        kubelet_minor_version=other_kubelet
        and Version.parse(before.kubelet).minor != Version.parse(wanted.kubelet).minor,
        kubelet_config=config,
        kubelet_cpu_manager_policy=policy,
        kubelet_certificate_authorities=authorities,
        own_certificate_authorities=authorities,
        service_account_key=_rotated(before.credentials_rotation, wanted.credentials_rotation, "service_account_key"),
    )


def with_kubelet_config(config: OperatingSystemConfig, content: bytes) -> OperatingSystemConfig:
    """Return an OSC with these bytes as the kubelet's configuration."""
    inline = Inline(encoding="b64", data=b64encode(content).decode())
    file = File(path=KUBELET_CONFIG, content=FileContent(inline=inline))
    others = [other for other in config.spec.files if other.path != KUBELET_CONFIG]
    return config.model_copy(update={"spec": config.spec.model_copy(update={"files": (*others, file)})})


def authorities_rotation(config: OperatingSystemConfig) -> str:
    """Return when the rotation of certificate authorities was begun, as the OSC has it: this tells one from others."""
    wanted = config.spec.in_place_updates
    rotation = wanted.credentials_rotation if wanted is not None else None
    authorities = rotation.certificate_authorities if rotation is not None else None
    return (authorities.last_initiation_time or "") if authorities is not None else ""


def _rotated(before: CredentialsRotation | None, now: CredentialsRotation | None, kind: str) -> bool:
    return _begun(now, kind) not in (None, _begun(before, kind))


def _begun(rotation: CredentialsRotation | None, kind: str) -> datetime | str | None:
    found: CredentialRotation | None = getattr(rotation, kind, None)
    text = found.last_initiation_time if found is not None else None
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return text


def _kubelet_changes(old: OperatingSystemConfig, new: OperatingSystemConfig) -> tuple[bool, bool]:
    """Tell whether relevant settings and whether the CPU manager's policy differ."""
    try:
        now = _kubelet_config(new)
    except UnusableKubeletConfig as error:
        raise InvalidOSC([Problem(f"spec.files[path={KUBELET_CONFIG}]", error.message)]) from error
    try:
        before = _kubelet_config(old)
    except UnusableKubeletConfig:
        before = {}  # whatever it was: with the new one, everything counts as changed
    policy = (before.get("cpuManagerPolicy") or "") != (now.get("cpuManagerPolicy") or "")
    if _relevant(before, "evictionHard", _EVICTION) != _relevant(now, "evictionHard", _EVICTION):
        return True, policy
    # Of what was there before the same is no error: no new OSC could ever mend it.
    for name, value in _section(now, "kubeReserved").items():
        if not _QUANTITY.fullmatch(str(value)):
            raise InvalidOSC([Problem(f"kubeReserved.{name} of {KUBELET_CONFIG}", "is not a quantity")])
    return _relevant(before, "kubeReserved", _RESERVED) != _relevant(now, "kubeReserved", _RESERVED), policy


def _kubelet_config(config: OperatingSystemConfig) -> Mapping[str, object]:
    inline = next((file.content.inline for file in config.spec.files if file.path == KUBELET_CONFIG), None)
    if inline is None:
        raise UnusableKubeletConfig("must be there, with inline content, for updates in place")
    try:
        loaded = load_yaml(decode_file_content(inline))
    except (YamlError, InvalidContent) as error:
        raise UnusableKubeletConfig("is not readable as YAML") from error
    if not isinstance(loaded, Mapping):
        raise UnusableKubeletConfig("is not a mapping")
    return loaded


def _section(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}


def _relevant(config: Mapping[str, object], section: str, keys: Iterable[str]) -> dict[str, object]:
    found = _section(config, section)
    return {key: found[key] for key in keys if key in found}
