"""Which operation is next for an object. Source: gardener pkg/api/core/v1beta1/helper/common.go (contract controllers 2.3)."""

from agents.kube.objects import ObjectMeta
from gardenlet.apis.constants import OPERATION, OPERATION_MIGRATE, OPERATION_RESTORE
from gardenlet.apis.core import LastOperation, OperationState, OperationType

_RESUMED = frozenset({OperationType.CREATE, OperationType.MIGRATE, OperationType.RESTORE})


def operation_type(metadata: ObjectMeta, last: LastOperation | None) -> OperationType:
    """Return the operation to do: what was asked for, else what was begun and has not succeeded, else a reconcile."""
    asked = metadata.annotations.get(OPERATION)
    if asked == OPERATION_MIGRATE:
        return OperationType.MIGRATE
    if metadata.deletion_timestamp:
        return OperationType.DELETE
    if asked == OPERATION_RESTORE:
        return OperationType.RESTORE
    if last is None:
        return OperationType.CREATE
    if last.type in _RESUMED and last.state != OperationState.SUCCEEDED:
        return OperationType(last.type)
    return OperationType.RECONCILE
