"""Which operation is next."""

import pytest

from agents.kube.objects import ObjectMeta
from gardenlet.apis.core import LastOperation, OperationType
from gardenlet.operation.types import operation_type

C, R, D, M, S = "Create", "Reconcile", "Delete", "Migrate", "Restore"


@pytest.mark.parametrize(
    ("annotation", "deleting", "last", "expected"),
    [
        ("migrate", True, (C, "Error"), M),
        ("migrate", False, None, M),
        (None, True, None, D),
        ("restore", True, None, D),
        ("restore", False, (R, "Succeeded"), S),
        ("reconcile", False, None, C),
        (None, False, (C, "Processing"), C),
        (None, False, (C, "Failed"), C),
        (None, False, (C, "Succeeded"), R),
        (None, False, (M, "Error"), M),
        (None, False, (M, "Succeeded"), R),
        (None, False, (S, "Error"), S),
        (None, False, (S, "Succeeded"), R),
        (None, False, (R, "Error"), R),
        (None, False, (D, "Error"), R),
        (None, False, ("", ""), R),
    ],
)
def test_operation_type(annotation: str | None, deleting: bool, last: tuple[str, str] | None, expected: str) -> None:
    """Contract controllers 2.3: the operation-type algorithm, in its order."""
    metadata = ObjectMeta(
        annotations={} if annotation is None else {"gardener.cloud/operation": annotation},
        deletion_timestamp="2026-01-01T00:00:00Z" if deleting else "",
    )
    operation = None if last is None else LastOperation(type=last[0], state=last[1])
    assert operation_type(metadata, operation) is OperationType(expected)
