"""Which changes of Gardener's objects are worth a reconcile; the general ones are in `agents.runtime.predicate`.

Source: gardener pkg/controllerutils/predicate/predicate.go, pkg/extensions/predicate.go (contract controllers 2.2).
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from agents.kube.objects import KubeObject
from agents.runtime.predicate import Predicate
from gardenlet.apis.constants import OPERATION, OPERATION_MIGRATE, OPERATION_RECONCILE, OPERATION_RESTORE
from gardenlet.apis.core import Condition, LastOperation, OperationState, OperationType
from gardenlet.apis.extensions import DEFAULT_CLASS, ExtensionObject
from gardenlet.apis.resources import APPLIED, HEALTHY, PROGRESSING, ManagedResource

T = TypeVar("T", bound=KubeObject)

_ENDED = frozenset({OperationState.SUCCEEDED, OperationState.ERROR, OperationState.FAILED})


def last_operation_changed(last_operation: Callable[[T], LastOperation | None]) -> Predicate[T]:
    """Accept an object whose operation has ended, once its controller has taken up what was asked of it.

    An object that appears counts only if its operation failed: that happens when we start. Migrate and restore stay annotated
    until they have ended; every other annotation means that nobody has begun.
    """

    def accepts(old: T | None, new: T | None, /) -> bool:
        if new is None:
            return False
        annotation = new.metadata.annotations.get(OPERATION)
        now = last_operation(new)
        if old is None:
            return annotation != OPERATION_RECONCILE and now is not None and now.state == OperationState.FAILED
        if annotation is not None and (
            annotation not in (OPERATION_MIGRATE, OPERATION_RESTORE)
            or old.metadata.annotations.get(OPERATION) != annotation
        ):
            return False
        return now is not None and now.state in _ENDED and last_operation(old) != now

    return accepts


def reconciliation_finished_successfully(old: LastOperation | None, new: LastOperation | None) -> bool:
    """Return whether an operation that is not a deletion has just succeeded."""
    return (
        old is not None
        and new is not None
        and OperationType.DELETE not in (old.type, new.type)
        and old.state == OperationState.PROCESSING
        and new.state == OperationState.SUCCEEDED
    )


def conditions_changed(conditions: Callable[[T], Iterable[Condition]], *types: str) -> Predicate[T]:
    """Accept an object that appears or goes away, or with another status, reason or message of one of these conditions."""

    def told(item: T) -> dict[str, tuple[str, str, str]]:
        return {
            condition.type: (condition.status, condition.reason, condition.message)
            for condition in conditions(item)
            if condition.type in types
        }

    return lambda old, new: old is None or new is None or told(old) != told(new)


def _conditions(item: ManagedResource) -> Iterable[Condition]:
    return item.status.conditions


managed_resource_conditions_changed: Predicate[ManagedResource] = conditions_changed(
    _conditions, APPLIED, HEALTHY, PROGRESSING
)
"""Accept a ManagedResource whose objects fare differently."""


def has_class(*classes: str) -> Predicate[ExtensionObject]:
    """Accept every change of an extension object of one of these classes; one without a class is a shoot's."""

    def accepts(old: ExtensionObject | None, new: ExtensionObject | None, /) -> bool:
        item = old if new is None else new
        return item is not None and (item.spec.class_ or DEFAULT_CLASS) in classes

    return accepts


def type_changed(old: ExtensionObject | None, new: ExtensionObject | None, /) -> bool:
    """Accept an extension object that appears or goes away, is shown again unchanged, or has another type."""
    if old is None or new is None:
        return True
    return old.metadata.resource_version == new.metadata.resource_version or old.spec.type != new.spec.type
