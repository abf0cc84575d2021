"""What Gardener's node agent reads from the disk, written after contract 2, 3, 4.4, 5.3 and 6.4: strictly, every other key is refused.

Its own decoder is more lenient. What passes here it understands, and nothing that we write gets lost on the way unnoticed.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from agents.core.yamlio import load_yaml

Name = Annotated[str, Field(min_length=1)]
Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(ge=0)]


class Strict(BaseModel):
    """Knows its keys."""

    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file, YAML or JSON."""
        return cls.model_validate(load_yaml(path.read_bytes()))


class DropIn(Strict):
    """Both keys are always there."""

    name: Name
    content: str


class Unit(Strict):
    """Optional keys are left out, lists when they are empty."""

    name: Name
    command: Literal["start", "restart", "stop"] | None = None
    enable: Flag | None = None
    content: str | None = None
    drop_ins: Annotated[list[DropIn], Field(min_length=1)] = []
    file_paths: Annotated[list[Name], Field(min_length=1)] = []


class Inline(Strict):
    """Plain or base64."""

    encoding: Literal["", "b64"]
    data: str


class SecretRef(Strict):
    """A key of a Secret."""

    name: Name
    data_key: Name


class ImageRef(Strict):
    """A file in an image."""

    image: Name
    file_path_in_image: Name


class Content(Strict):
    """Exactly one."""

    inline: Inline | None = None
    secret_ref: SecretRef | None = None
    image_ref: ImageRef | None = None
    transmit_unencoded: Flag | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(source is not None for source in (self.inline, self.secret_ref, self.image_ref)) != 1:
            raise ValueError("exactly one of inline, secretRef, imageRef")
        return self


class File(Strict):
    """A whole File object."""

    path: Name
    content: Content
    permissions: Count | None = None
    host_name: str | None = None


class Host(Strict):
    """A mirror."""

    url: Name
    capabilities: Annotated[list[Literal["pull", "resolve", "push"]], Field(min_length=1)] = []
    ca_certs: Annotated[list[Name], Field(min_length=1)] = []
    override_path: Flag | None = None


class Registry(Strict):
    """A registry; of a deleted one only the upstream counts."""

    upstream: Name
    server: str | None = None
    hosts: Annotated[list[Host], Field(min_length=1)] = []
    readiness_probe: Flag | None = None


class Files(Strict):
    """What is left of the files."""

    changed: Annotated[list[File], Field(min_length=1)] = []
    deleted: Annotated[list[File], Field(min_length=1)] = []


class DropInsChanges(Strict):
    """What is left of a unit's drop-ins."""

    changed: Annotated[list[DropIn], Field(min_length=1)] = []
    deleted: Annotated[list[DropIn], Field(min_length=1)] = []


class ChangedUnit(Unit):
    """A whole unit, and its drop-ins apart."""

    drop_ins_changes: DropInsChanges


class Command(Strict):
    """It fails on any other word."""

    name: Name
    command: Literal["restart", "stop"]


class Units(Strict):
    """What is left of the units."""

    changed: Annotated[list[ChangedUnit], Field(min_length=1)] = []
    deleted: Annotated[list[Unit], Field(min_length=1)] = []
    commands: Annotated[list[Command], Field(min_length=1)] = []


class Registries(Strict):
    """What is left of the registries."""

    upstreams_to_probe: Annotated[list[Name], Field(min_length=1)] = []
    desired: Annotated[list[Registry], Field(min_length=1)] = []
    deleted: Annotated[list[Registry], Field(min_length=1)] = []


class Containerd(Strict):
    """What is left of containerd."""

    config_file_changed: Flag
    registries: Registries


class Kubelet(Strict):
    """Its flags are always there."""

    minor_version: Flag
    config: Flag
    cpu_manager_policy: Flag


class Authorities(Strict):
    """Its flags are always there."""

    kubelet: Flag
    node_agent: Flag


class InPlace(Strict):
    """Its flags are always there."""

    operating_system: Flag
    service_account_key_rotation: Flag
    kubelet: Kubelet
    certificate_authorities_rotation: Authorities


class PendingChanges(Strict):
    """`last-computed-osc-changes.yaml`; the private key is what it ignores."""

    operating_system_config_checksum: Name
    must_restart_node_agent: Flag
    files: Files
    units: Units
    containerd: Containerd
    in_place_updates: InPlace
    x_journal: dict[str, object] = Field(default_factory=dict, alias="x-journal")

    @property
    def finished(self) -> bool:
        """Whether nothing is left."""
        lists = (*self.files, *self.units, *self.containerd.registries)
        return not (self.must_restart_node_agent or any(items for _, items in lists) or any(flags(self)))


def flags(model: BaseModel) -> list[bool]:
    """Return every flag of a model and of those in it."""
    found: list[bool] = []
    for _, value in model:
        if isinstance(value, bool):
            found.append(value)
        elif isinstance(value, BaseModel):
            found += flags(value)
    return found


class Plugin(Strict):
    """A change of a plugin's table."""

    op: Literal["add", "remove"] | None = None
    path: list[Name]
    values: object = None


class ContainerdSection(Strict):
    """Settings of containerd."""

    sandbox_image: str
    registries: list[Registry] = []
    plugins: list[Plugin] = []


class Runtime(Strict):
    """The container runtime."""

    name: Literal["containerd"]
    cgroup_driver: Literal["cgroupfs", "systemd"] | None = None
    containerd: ContainerdSection | None = None


class Rotation(Strict):
    """Of one kind of credentials."""

    last_initiation_time: str | None = None


class CredentialsRotation(Strict):
    """Of both kinds."""

    certificate_authorities: Rotation | None = None
    service_account_key: Rotation | None = None


class InPlaceUpdates(Strict):
    """Desired versions."""

    operating_system_version: str
    kubelet: str
    credentials_rotation: CredentialsRotation | None = None


class Spec(Strict):
    """`spec`."""

    units: list[Unit]
    files: list[File]
    cri_config: Runtime
    in_place_updates: InPlaceUpdates
    type: str = ""
    purpose: str = ""


class LastApplied(Strict):
    """`last-applied-osc.yaml`; apiVersion and kind must be there, because one of its readers decodes it without a hint."""

    api_version: Literal["extensions.gardener.cloud/v1alpha1"]
    kind: Literal["OperatingSystemConfig"]
    spec: Spec
    metadata: dict[str, object] = {}
    status: dict[str, object] = {}


class Cluster(Strict):
    """Server and CA, which is named or inline."""

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"))

    server: Annotated[str, Field(pattern="^https://")]
    certificate_authority: str = ""
    certificate_authority_data: str = ""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if bool(self.certificate_authority) == bool(self.certificate_authority_data):
            raise ValueError("exactly one of certificate-authority, certificate-authority-data")
        return self


class User(Strict):
    """Inline certificate and key."""

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"))

    client_certificate_data: Name
    client_key_data: Name


class Context(Strict):
    """The only one."""

    cluster: Literal["node-agent"]
    user: Literal["node-agent"]


class NamedCluster(Strict):
    """One."""

    name: Literal["node-agent"]
    cluster: Cluster


class NamedUser(Strict):
    """One."""

    name: Literal["node-agent"]
    user: User


class NamedContext(Strict):
    """One."""

    name: Literal["node-agent"]
    context: Context


class Kubeconfig(Strict):
    """`credentials/kubeconfig`."""

    model_config = ConfigDict(
        alias_generator=lambda name: "current-context" if name == "current_context" else to_camel(name)
    )

    api_version: Literal["v1"]
    kind: Literal["Config"]
    clusters: Annotated[list[NamedCluster], Field(min_length=1, max_length=1)]
    users: Annotated[list[NamedUser], Field(min_length=1, max_length=1)]
    contexts: Annotated[list[NamedContext], Field(min_length=1, max_length=1)]
    current_context: Literal["node-agent"]


class ClientConnection(Strict):
    """Every key is there."""

    kubeconfig: str
    accept_content_types: str
    content_type: str
    qps: float
    burst: int


class Endpoint(Strict):
    """Every key is there."""

    bind_address: str
    port: Annotated[int, Field(gt=0)]


class Server(Strict):
    """Defaults are filled in."""

    health_probes: Endpoint
    metrics: Endpoint


class ApiServer(Strict):
    """Where the API server is."""

    server: Name
    ca_file: str = ""
    ca_bundle: str = ""


class OscController(Strict):
    """Every key is there."""

    secret_name: Name
    kubernetes_version: Name
    sync_period: Name


class TokenSync(Strict):
    """A token and its file."""

    secret_name: Name
    path: Name


class TokenController(Strict):
    """Every key is there."""

    sync_configs: list[TokenSync]
    sync_period: Name


class SystemdUnitCheck(Strict):
    """Every key is there."""

    sync_period: Name
    stuck_threshold: Name


class Controllers(Strict):
    """All of them."""

    operating_system_config: OscController
    token: TokenController
    systemd_unit_check: SystemdUnitCheck


class NodeAgentConfig(Strict):
    """`config-<version>.yaml`, defaulted, as the controller of the Secret's name writes it."""

    api_version: Literal["nodeagent.config.gardener.cloud/v1alpha1"]
    kind: Literal["NodeAgentConfiguration"]
    client_connection: ClientConnection
    log_level: Literal["debug", "info", "error"]
    log_format: Literal["json", "text"]
    server: Server
    api_server: ApiServer
    controllers: Controllers
