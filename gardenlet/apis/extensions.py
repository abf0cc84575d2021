"""`extensions.gardener.cloud/v1alpha1`: objects that gardenlet writes and extension controllers work on.

They are read whole: provider configuration and state pass through us unread. Source: gardener pkg/apis/extensions/v1alpha1
(contract controllers 2.17).
"""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, JsonValue

from agents.kube.objects import Document, Items, Projection, Text
from agents.kube.resource import Resource
from gardenlet.apis.core import Condition, LastError, LastOperation

GROUP, VERSION = "extensions.gardener.cloud", "v1alpha1"
DEFAULT_CLASS = "shoot"
"""What a class that is not set, or empty, means."""


class ExtensionSpec(Projection):
    """What all of them have in their spec."""

    type: Text = ""
    class_: Text = Field(default="", alias="class")
    purpose: Text = ""


def _status(value: object) -> object:
    return {} if value is None else value


class ExtensionStatus(Projection):
    """What all of them have in their status."""

    observed_generation: int = 0
    last_operation: LastOperation | None = None
    last_error: LastError | None = None
    conditions: Items[Condition] = ()
    state: JsonValue = None


class ExtensionObject(Document):
    """Any of them, and the core kinds BackupBucket and BackupEntry, which follow the same life cycle."""

    spec: ExtensionSpec = ExtensionSpec()
    status: Annotated[ExtensionStatus, BeforeValidator(_status)] = ExtensionStatus()


def _extension(kind: str, plural: str, *, namespaced: bool = True) -> Resource[ExtensionObject]:
    return Resource(GROUP, VERSION, plural, kind, namespaced=namespaced, model=ExtensionObject)


BACKUP_BUCKETS = _extension("BackupBucket", "backupbuckets", namespaced=False)
BACKUP_ENTRIES = _extension("BackupEntry", "backupentries", namespaced=False)
BASTIONS = _extension("Bastion", "bastions")
CONTAINER_RUNTIMES = _extension("ContainerRuntime", "containerruntimes")
CONTROL_PLANES = _extension("ControlPlane", "controlplanes")
DNS_RECORDS = _extension("DNSRecord", "dnsrecords")
EXTENSIONS = _extension("Extension", "extensions")
INFRASTRUCTURES = _extension("Infrastructure", "infrastructures")
NETWORKS = _extension("Network", "networks")
OPERATING_SYSTEM_CONFIGS = _extension("OperatingSystemConfig", "operatingsystemconfigs")
WORKERS = _extension("Worker", "workers")

KINDS: tuple[Resource[Any], ...] = (
    BACKUP_BUCKETS,
    BACKUP_ENTRIES,
    BASTIONS,
    CONTAINER_RUNTIMES,
    CONTROL_PLANES,
    DNS_RECORDS,
    EXTENSIONS,
    INFRASTRUCTURES,
    NETWORKS,
    OPERATING_SYSTEM_CONFIGS,
    WORKERS,
)

CORE_BACKUP_BUCKETS = Resource(
    "core.gardener.cloud", "v1beta1", "backupbuckets", "BackupBucket", namespaced=False, model=ExtensionObject
)
CORE_BACKUP_ENTRIES = Resource(
    "core.gardener.cloud", "v1beta1", "backupentries", "BackupEntry", namespaced=True, model=ExtensionObject
)
