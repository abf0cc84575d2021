"""What many kinds of `core.gardener.cloud` and `extensions.gardener.cloud` have in their status.

Times are kept as they stand in the object, so that what is sent back is what was read; `moment` reads one.
Source: gardener pkg/apis/core/v1beta1/types_common.go.
"""

from datetime import UTC, datetime, timedelta
from enum import StrEnum

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from agents.kube.objects import Items, Projection, Text


class OperationType(StrEnum):
    """What an operation does."""

    CREATE = "Create"
    RECONCILE = "Reconcile"
    DELETE = "Delete"
    MIGRATE = "Migrate"
    RESTORE = "Restore"


class OperationState(StrEnum):
    """How far an operation is."""

    PROCESSING = "Processing"
    SUCCEEDED = "Succeeded"
    ERROR = "Error"
    FAILED = "Failed"
    PENDING = "Pending"
    ABORTED = "Aborted"


class ErrorCode(StrEnum):
    """Why an operation failed, for machines."""

    INFRA_UNAUTHENTICATED = "ERR_INFRA_UNAUTHENTICATED"
    INFRA_UNAUTHORIZED = "ERR_INFRA_UNAUTHORIZED"
    INFRA_QUOTA_EXCEEDED = "ERR_INFRA_QUOTA_EXCEEDED"
    INFRA_RATE_LIMITS_EXCEEDED = "ERR_INFRA_RATE_LIMITS_EXCEEDED"
    INFRA_DEPENDENCIES = "ERR_INFRA_DEPENDENCIES"
    RETRYABLE_INFRA_DEPENDENCIES = "ERR_RETRYABLE_INFRA_DEPENDENCIES"
    INFRA_RESOURCES_DEPLETED = "ERR_INFRA_RESOURCES_DEPLETED"
    CLEANUP_CLUSTER_RESOURCES = "ERR_CLEANUP_CLUSTER_RESOURCES"
    CONFIGURATION_PROBLEM = "ERR_CONFIGURATION_PROBLEM"
    RETRYABLE_CONFIGURATION_PROBLEM = "ERR_RETRYABLE_CONFIGURATION_PROBLEM"
    PROBLEMATIC_WEBHOOK = "ERR_PROBLEMATIC_WEBHOOK"


NON_RETRYABLE = frozenset(
    {
        ErrorCode.INFRA_UNAUTHENTICATED,
        ErrorCode.INFRA_UNAUTHORIZED,
        ErrorCode.INFRA_DEPENDENCIES,
        ErrorCode.INFRA_QUOTA_EXCEEDED,
        ErrorCode.INFRA_RATE_LIMITS_EXCEEDED,
        ErrorCode.CONFIGURATION_PROBLEM,
        ErrorCode.PROBLEMATIC_WEBHOOK,
    }
)
"""With one of these a Shoot is not tried again until somebody changes it (contract controllers 2.7)."""


class LastOperation(Projection):
    """The operation that is under way, or was the last one."""

    type: Text = ""
    state: Text = ""
    progress: int = 0
    description: Text = ""
    last_update_time: Text = ""


class LastError(Projection):
    """One error of the last operation; codes that we do not know are kept."""

    description: Text = ""
    task_id: str | None = None
    codes: Items[str] = ()
    last_update_time: Text = ""

    model_config = ConfigDict(
        alias_generator=lambda name: "taskID" if name == "task_id" else to_camel(name), populate_by_name=True
    )


class ConditionStatus(StrEnum):
    """Status of a condition; Gardener has a fourth one."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"
    PROGRESSING = "Progressing"


class Condition(Projection):
    """One observation about an object; what we do not know of somebody else's survives."""

    model_config = ConfigDict(extra="allow")

    type: str
    status: Text = ""
    reason: Text = ""
    message: Text = ""
    last_transition_time: Text = ""
    last_update_time: Text = ""
    codes: Items[str] = ()

    def document(self) -> dict[str, object]:
        """Return it as it goes into an object: what was read, and nothing that nobody set."""
        return {
            key: value
            for key, value in self.model_dump(mode="json", by_alias=True, exclude_unset=True).items()
            # A time that is not set is null or absent; an empty string would be refused.
            if value not in (None, []) and not (value == "" and key.endswith("Time"))
        }


def moment(text: str) -> datetime | None:
    """Return a time of an object as aware UTC datetime, None if it is not set or cannot be read.

    Fractions beyond microseconds are cut off.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def format_time(when: datetime) -> str:
    """Return a time as Kubernetes' Time: UTC, whole seconds."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_nano(when: datetime) -> str:
    """Return a time as Go's RFC3339Nano: UTC, fractions without zeros at the end."""
    text = when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f").rstrip("0").rstrip(".")
    return f"{text}Z"


def within(operation: LastOperation | None, threshold: timedelta, now: datetime) -> bool:
    """Return whether an operation has succeeded, no longer ago than a threshold."""
    if operation is None or operation.state != OperationState.SUCCEEDED:
        return False
    updated = moment(operation.last_update_time)
    return updated is not None and now - updated <= threshold
