"""Predicates over Gardener's objects."""

from typing import Any

import pytest

from gardenlet import predicates
from gardenlet.apis.core import LastOperation
from gardenlet.apis.extensions import ExtensionObject
from gardenlet.apis.resources import ManagedResource


def item(
    state: str | None = None, annotation: str | None = None, *, version: str = "1", kind: str = "Reconcile", **spec: str
) -> ExtensionObject:
    """Return an extension object."""
    annotations = {} if annotation is None else {"gardener.cloud/operation": annotation}
    operation = None if state is None else {"type": kind, "state": state}
    return ExtensionObject.model_validate(
        {
            "metadata": {"name": "a", "annotations": annotations, "resourceVersion": version},
            "spec": {"type": "t", **spec},
            "status": {"lastOperation": operation},
        }
    )


CHANGED = predicates.last_operation_changed(lambda item: item.status.last_operation)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("old", "new", "accepted"),
    [
        (None, item("Failed"), True),
        (None, item("Error"), False),
        (None, item("Succeeded"), False),
        (None, item(), False),
        (None, item("Failed", "reconcile"), False),
        (None, item("Failed", "restore"), True),
        (item("Processing"), item("Succeeded"), True),
        (item("Processing"), item("Error"), True),
        (item("Processing"), item("Failed"), True),
        (item("Processing"), item("Processing", version="2"), False),
        (item("Succeeded"), item("Succeeded"), False),
        (item("Succeeded"), item("Succeeded", kind="Create"), True),
        (item(), item("Succeeded"), True),
        (item("Succeeded"), item(), False),
        (item("Processing", "reconcile"), item("Succeeded", "reconcile"), False),
        (item("Processing", "wait-for-state"), item("Succeeded", "wait-for-state"), False),
        (item("Processing", "migrate"), item("Succeeded", "migrate"), True),
        (item("Processing", "restore"), item("Error", "restore"), True),
        (item("Processing"), item("Succeeded", "migrate"), False),
        (item("Processing", "migrate"), item("Succeeded", "restore"), False),
        (item("Processing", "migrate"), item("Succeeded"), True),
        (item("Failed"), None, False),
    ],
)
def test_last_operation_changed(old: Any, new: Any, accepted: bool) -> None:
    """Contract controllers 2.2: lastOperationChanged, row by row: creates, annotations that are not taken up, end states."""
    assert CHANGED(old, new) is accepted


@pytest.mark.parametrize(
    ("old", "new", "accepted"),
    [
        (("Reconcile", "Processing"), ("Reconcile", "Succeeded"), True),
        (("Create", "Processing"), ("Reconcile", "Succeeded"), True),
        (("Delete", "Processing"), ("Reconcile", "Succeeded"), False),
        (("Reconcile", "Processing"), ("Delete", "Succeeded"), False),
        (("Reconcile", "Error"), ("Reconcile", "Succeeded"), False),
        (("Reconcile", "Processing"), ("Reconcile", "Error"), False),
        (None, ("Reconcile", "Succeeded"), False),
        (("Reconcile", "Processing"), None, False),
    ],
)
def test_reconciliation_finished_successfully(
    old: tuple[str, str] | None, new: tuple[str, str] | None, accepted: bool
) -> None:
    """Contract controllers 2.2: from Processing to Succeeded, both not of type Delete."""

    def operation(pair: tuple[str, str] | None) -> LastOperation | None:
        return None if pair is None else LastOperation(type=pair[0], state=pair[1])

    assert predicates.reconciliation_finished_successfully(operation(old), operation(new)) is accepted


def managed(*conditions: dict[str, str]) -> ManagedResource:
    """Return a ManagedResource."""
    return ManagedResource.model_validate({"metadata": {"name": "m"}, "status": {"conditions": list(conditions)}})


HEALTHY = {"type": "ResourcesHealthy", "status": "True", "reason": "r", "message": "m"}


@pytest.mark.parametrize(
    ("new", "accepted"),
    [
        (managed(HEALTHY), False),
        (managed({**HEALTHY, "lastUpdateTime": "2026-01-01T00:00:00Z"}), False),
        (managed(HEALTHY, {"type": "Other", "status": "True"}), False),
        (managed({**HEALTHY, "status": "False"}), True),
        (managed({**HEALTHY, "reason": "x"}), True),
        (managed({**HEALTHY, "message": "x"}), True),
        (managed(), True),
        (managed(HEALTHY, {"type": "ResourcesApplied", "status": "True"}), True),
        (managed(HEALTHY, {"type": "ResourcesProgressing", "status": "True"}), True),
        (None, True),
    ],
)
def test_managed_resource_conditions_changed(new: ManagedResource | None, accepted: bool) -> None:
    """Contract controllers 2.2: status, reason or message of the three conditions changed; everything but updates passes."""
    assert predicates.managed_resource_conditions_changed(managed(HEALTHY), new) is accepted
    assert predicates.managed_resource_conditions_changed(None, new)


@pytest.mark.parametrize(
    ("found", "classes", "accepted"),
    [
        ("", ("shoot",), True),
        ("shoot", ("shoot",), True),
        ("seed", ("shoot",), False),
        ("seed", ("shoot", "seed"), True),
    ],
)
def test_has_class(found: str, classes: tuple[str, ...], accepted: bool) -> None:
    """Contract controllers 2.2: an extension class that is missing or empty counts as `shoot`."""
    accepts = predicates.has_class(*classes)
    with_class = item(**{"class": found})
    assert accepts(None, with_class) is accepts(with_class, None) is accepted
    assert accepts(None, item()) is ("shoot" in classes)


def test_type_changed() -> None:
    """Contract controllers 2.2: objectPredicate: create, delete, a resync, and another `spec.type`."""
    assert predicates.type_changed(None, item())
    assert predicates.type_changed(item(), None)
    assert predicates.type_changed(item(version="1"), item(version="1"))
    assert not predicates.type_changed(item(version="1"), item("Succeeded", version="2"))
    assert predicates.type_changed(item(version="1"), item(version="2", type="other"))
