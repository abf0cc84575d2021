"""Which changes of an object are worth a reconcile, as pure functions of the old and the new object.

A predicate gets `(None, new)` when an object appears, `(old, new)` when it changes and `(old, None)` when it goes away.
"""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from agents.kube.models import KubeObject, Secret

T = TypeVar("T", bound=KubeObject)
T_contra = TypeVar("T_contra", bound=KubeObject, contravariant=True)


class Predicate(Protocol[T_contra]):
    """Pure filter of one change."""

    def __call__(self, old: T_contra | None, new: T_contra | None, /) -> bool:
        """Return whether the change is worth a reconcile."""
        ...


def always(_old: KubeObject | None, _new: KubeObject | None, /) -> bool:
    """Accept every change."""
    return True


def created(old: KubeObject | None, new: KubeObject | None, /) -> bool:
    """Accept an object that appears."""
    return old is None and new is not None


def updated(old: KubeObject | None, new: KubeObject | None, /) -> bool:
    """Accept an object that changes."""
    return old is not None and new is not None


def deleted(old: KubeObject | None, new: KubeObject | None, /) -> bool:
    """Accept an object that goes away."""
    return old is not None and new is None


def generation_changed(old: KubeObject | None, new: KubeObject | None, /) -> bool:
    """Accept an object that appears or goes away, or whose generation is another one than before."""
    return old is None or new is None or old.metadata.generation != new.metadata.generation


def is_deleting(old: KubeObject | None, new: KubeObject | None, /) -> bool:
    """Accept every change of an object that is being deleted, or was when it went away."""
    item = old if new is None else new
    return item is not None and bool(item.metadata.deletion_timestamp)


def annotation_changed(key: str) -> Predicate[KubeObject]:
    """Accept an object whose annotation has another value than before, or appears with the object."""
    return _value_changed(lambda item: item.metadata.annotations, key)


def label_changed(key: str) -> Predicate[KubeObject]:
    """Accept an object whose label has another value than before, or appears with the object."""
    return _value_changed(lambda item: item.metadata.labels, key)


def data_changed(key: str) -> Predicate[Secret]:
    """Accept a Secret whose data under a key differ from before, or appear with the Secret."""

    def changed(old: Secret | None, new: Secret | None, /) -> bool:
        return new is not None and (None if old is None else old.data.get(key)) != new.data.get(key)

    return changed


def label_is(key: str, value: str) -> Predicate[KubeObject]:
    """Accept every change of an object that has, or had when it went away, this value of a label."""

    def matches(old: KubeObject | None, new: KubeObject | None, /) -> bool:
        item = old if new is None else new
        return item is not None and item.metadata.labels.get(key) == value

    return matches


def all_of(*predicates: Predicate[T]) -> Predicate[T]:
    """Accept what every one of the predicates accepts."""
    return lambda old, new: all(accepts(old, new) for accepts in predicates)


def any_of(*predicates: Predicate[T]) -> Predicate[T]:
    """Accept what at least one of the predicates accepts."""
    return lambda old, new: any(accepts(old, new) for accepts in predicates)


def negate(predicate: Predicate[T]) -> Predicate[T]:
    """Accept what the predicate does not accept."""
    return lambda old, new: not predicate(old, new)


def _value_changed(values: Callable[[KubeObject], Mapping[str, str]], key: str) -> Predicate[KubeObject]:
    def changed(old: KubeObject | None, new: KubeObject | None, /) -> bool:
        return new is not None and (None if old is None else values(old).get(key)) != values(new).get(key)

    return changed
