"""The OperatingSystemConfig as far as the agent reads it.

Frozen models straight from plain values: strict on types, every field optional (disk state may come from any earlier
node agent, contract Appendix B), unknown fields ignored here because the original document is kept beside. `null` is
the same as absent and an absent list equals an empty one, so `==` is the semantic equality of contract 5.2.

`to_wire` writes what Go's encoder would: fields marked `omitempty` are left out, the others are always there.

Source: gardener pkg/apis/extensions/v1alpha1/types_operatingsystemconfig.go.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

API_VERSION = "extensions.gardener.cloud/v1alpha1"
KIND = "OperatingSystemConfig"

UNIT_DIRECTORY = "/etc/systemd/system"
"""Where unit files and drop-ins of the OSC are written."""

OWN_UNIT = "gardener-node-agent.service"

DEFAULT_PERMISSIONS = 0o600
_PERMISSION_BITS = 0o777

Wire = dict[str, object]
"""A plain JSON object."""

UInt32 = Annotated[int, Field(ge=0, le=0xFFFFFFFF)]


class WireModel(BaseModel):
    """Base of what is read from an OSC or a state file."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="ignore",
        alias_generator=to_camel,
        populate_by_name=True,
        arbitrary_types_allowed=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: object) -> object:
        if isinstance(value, Mapping):
            return {key: _as_tuple(item) for key, item in value.items() if item is not None}
        return value


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


class DropIn(WireModel):
    """A file in `<unit>.d`."""

    name: str = ""
    content: str = ""

    def to_wire(self) -> Wire:
        """Return the JSON object."""
        return {"name": self.name, "content": self.content}


class Unit(WireModel):
    """A systemd unit: what its file and its drop-ins hold, and in which state it shall be."""

    name: str = ""
    command: str | None = None
    enable: bool | None = None
    content: str | None = None
    drop_ins: tuple[DropIn, ...] = ()
    file_paths: tuple[str, ...] = ()

    def to_wire(self) -> Wire:
        """Return the JSON object."""
        wire: Wire = {"name": self.name}
        if self.command is not None:
            wire["command"] = self.command
        if self.enable is not None:
            wire["enable"] = self.enable
        if self.content is not None:
            wire["content"] = self.content
        if self.drop_ins:
            wire["dropIns"] = [drop_in.to_wire() for drop_in in self.drop_ins]
        if self.file_paths:
            wire["filePaths"] = list(self.file_paths)
        return wire

    @property
    def path(self) -> str:
        """Where its unit file is written."""
        return f"{UNIT_DIRECTORY}/{self.name}"

    @property
    def drop_in_directory(self) -> str:
        """Where its drop-ins are written."""
        return f"{UNIT_DIRECTORY}/{self.name}.d"

    def written_paths(self) -> tuple[str, ...]:
        """Paths of all files that this unit puts on the disk."""
        own = (self.path,) if self.content is not None else ()
        return own + tuple(f"{self.drop_in_directory}/{drop_in.name}" for drop_in in self.drop_ins)


class Inline(WireModel):
    """Content inside the OSC; `encoding` is empty for plain text or `b64`."""

    encoding: str = ""
    data: str = ""

    def to_wire(self) -> Wire:
        """Return the JSON object."""
        return {"encoding": self.encoding, "data": self.data}


class SecretRef(WireModel):
    """Content in a Secret of namespace `kube-system`."""

    name: str = ""
    data_key: str = ""

    def to_wire(self) -> Wire:
        """Return the JSON object."""
        return {"name": self.name, "dataKey": self.data_key}


class ImageRef(WireModel):
    """Content in a container image."""

    image: str = ""
    file_path_in_image: str = ""

    def to_wire(self) -> Wire:
        """Return the JSON object."""
        return {"image": self.image, "filePathInImage": self.file_path_in_image}


class FileContent(WireModel):
    """Where a file's bytes come from: exactly one of the three."""

    inline: Inline | None = None
    secret_ref: SecretRef | None = None
    image_ref: ImageRef | None = None
    transmit_unencoded: bool | None = None

    def to_wire(self) -> Wire:
        """Return the JSON object."""
        wire: Wire = {}
        if self.inline is not None:
            wire["inline"] = self.inline.to_wire()
        if self.secret_ref is not None:
            wire["secretRef"] = self.secret_ref.to_wire()
        if self.image_ref is not None:
            wire["imageRef"] = self.image_ref.to_wire()
        if self.transmit_unencoded is not None:
            wire["transmitUnencoded"] = self.transmit_unencoded
        return wire


class File(WireModel):
    """A file on the node."""

    path: str = ""
    permissions: UInt32 | None = None
    host_name: str | None = None
    content: FileContent = FileContent()

    @property
    def mode(self) -> int:
        """Permission bits on disk; only nine bits have an effect."""
        return DEFAULT_PERMISSIONS if self.permissions is None else self.permissions & _PERMISSION_BITS

    def to_wire(self) -> Wire:
        """Return the JSON object."""
        wire: Wire = {"path": self.path, "content": self.content.to_wire()}
        if self.permissions is not None:
            wire["permissions"] = self.permissions
        if self.host_name is not None:
            wire["hostName"] = self.host_name
        return wire


class RegistryHost(WireModel):
    """A mirror of a registry, as containerd's `hosts.toml` knows it."""

    url: str = ""
    capabilities: tuple[str, ...] = ()
    ca_certs: tuple[str, ...] = ()
    override_path: bool | None = None

    def to_wire(self) -> Wire:
        """Return the JSON object."""
        wire: Wire = {"url": self.url}
        if self.capabilities:
            wire["capabilities"] = list(self.capabilities)
        if self.ca_certs:
            wire["caCerts"] = list(self.ca_certs)
        if self.override_path is not None:
            wire["overridePath"] = self.override_path
        return wire


class Registry(WireModel):
    """Where images of one upstream registry are pulled from."""

    upstream: str = ""
    server: str | None = None
    hosts: tuple[RegistryHost, ...] = ()
    readiness_probe: bool | None = None

    def to_wire(self) -> Wire:
        """Return the JSON object."""
        wire: Wire = {"upstream": self.upstream}
        if self.server is not None:
            wire["server"] = self.server
        if self.hosts:
            wire["hosts"] = [host.to_wire() for host in self.hosts]
        if self.readiness_probe is not None:
            wire["readinessProbe"] = self.readiness_probe
        return wire


class Plugin(WireModel):
    """A change of a plugin's table in containerd's configuration."""

    op: str | None = None
    path: tuple[str, ...] = ()
    values: object = None
    """A JSON object; absent: the table is only created."""

    @property
    def removes(self) -> bool:
        """Whether the table is taken away; otherwise it gets the values."""
        return self.op == "remove"


class Containerd(WireModel):
    """Settings of containerd."""

    registries: tuple[Registry, ...] = ()
    sandbox_image: str = ""
    plugins: tuple[Plugin, ...] = ()


class CRIConfig(WireModel):
    """Container runtime."""

    name: str = ""
    cgroup_driver: str | None = None
    containerd: Containerd | None = None


class CredentialRotation(WireModel):
    """When the rotation of one kind of credentials was begun."""

    last_initiation_time: str | None = None


class CredentialsRotation(WireModel):
    """Which credentials are being rotated."""

    certificate_authorities: CredentialRotation | None = None
    service_account_key: CredentialRotation | None = None


class InPlaceUpdates(WireModel):
    """What a machine that is updated without being replaced shall run."""

    operating_system_version: str = ""
    kubelet: str = ""
    credentials_rotation: CredentialsRotation | None = None


class OperatingSystemUpdate(WireModel):
    """The command that updates the operating system, without a shell around it."""

    command: str = ""
    args: tuple[str, ...] = ()


class InPlaceUpdatesStatus(WireModel):
    """How the operating system's extension wants it updated."""

    os_update: OperatingSystemUpdate | None = None


class Spec(WireModel):
    """What Gardener asks for."""

    units: tuple[Unit, ...] = ()
    files: tuple[File, ...] = ()
    cri_config: CRIConfig | None = None
    in_place_updates: InPlaceUpdates | None = None


class Status(WireModel):
    """What the operating system's extension adds."""

    extension_units: tuple[Unit, ...] = ()
    extension_files: tuple[File, ...] = ()
    in_place_updates: InPlaceUpdatesStatus | None = None


class OperatingSystemConfig(WireModel):
    """Desired state of a node."""

    spec: Spec = Spec()
    status: Status = Status()
