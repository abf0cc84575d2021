"""What ManagedResources say about the health of what they apply.

Source: gardener pkg/utils/kubernetes/health/checker/checker.go (contract core 7). Ours looks at all of them in a fixed order and names every
failure, so that a condition says the same as long as nothing changes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gardenlet.apis.core import Condition, ConditionStatus
from gardenlet.apis.resources import APPLIED, HEALTHY, PROGRESSING, ManagedResource
from gardenlet.care import conditions

OUTDATED = "OutdatedStatus"
MISSING = "MissingManagedResourceCondition"
APPLY_FAILED = "ApplyFailed"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a ManagedResource is not well."""

    reason: str
    message: str


def failures(items: Iterable[ManagedResource]) -> list[Failure]:
    """Return why ManagedResources are not well, by namespace and name; at most one failure of each."""
    ordered = sorted(items, key=lambda item: (item.metadata.namespace, item.metadata.name))
    return [failure for item in ordered if (failure := failure_of(item)) is not None]


def failure_of(item: ManagedResource) -> Failure | None:
    """Return the first thing that is wrong with a ManagedResource, None if it is well."""
    name = f"{item.metadata.namespace}/{item.metadata.name}"
    found = item.status.conditions
    applied = conditions.find(found, APPLIED)
    if item.metadata.generation != item.status.observed_generation:
        if applied is not None and (applied.status, applied.reason) == (ConditionStatus.FALSE, APPLY_FAILED):
            return Failure(applied.reason, f"{name}: {applied.message}")
        return Failure(
            OUTDATED,
            f"{name}: observed generation {item.status.observed_generation} of {item.metadata.generation}",
        )
    for kind, bad in (
        (APPLIED, ConditionStatus.FALSE),
        (HEALTHY, ConditionStatus.FALSE),
        (PROGRESSING, ConditionStatus.TRUE),
    ):
        condition = conditions.find(found, kind)
        if condition is not None and condition.status in (bad, ConditionStatus.UNKNOWN):
            return _said(name, condition)
    missing = [kind for kind in (APPLIED, HEALTHY, PROGRESSING) if conditions.find(found, kind) is None]
    return Failure(MISSING, f"{name}: condition {', '.join(missing)} is missing") if missing else None


def _said(name: str, condition: Condition) -> Failure:
    return Failure(condition.reason or condition.type, f"{name}: {condition.message}")
