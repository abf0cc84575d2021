"""What is known of the objects of one kind, by key; changed only by its reflector, read by everyone.

Objects are frozen, so a reader can keep what it was given. Each change comes out as a pair of the old and the new object.
"""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from agents.kube.models import KubeObject
from agents.runtime.reconcile import Request

T = TypeVar("T", bound=KubeObject)

Change = tuple[T | None, T | None]
"""The old and the new object: one of them is None when an object appears or goes away."""


def key_of(item: KubeObject) -> Request:
    """Return an object's key."""
    return Request(item.metadata.namespace, item.metadata.name)


class Store(Generic[T]):
    """Objects by key."""

    def __init__(self) -> None:
        self._items: dict[Request, T] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._items.values()))

    def get(self, key: Request) -> T | None:
        """Return an object, None if it is not known."""
        return self._items.get(key)

    def put(self, item: T) -> Change[T] | None:
        """Keep an object; return the change, None if this version is known already."""
        key = key_of(item)
        old = self._items.get(key)
        if old is not None and old.metadata == item.metadata and old == item:
            return None
        self._items[key] = item
        return old, item

    def remove(self, item: T) -> Change[T] | None:
        """Forget an object; return the change with its last known state, None if it was not known."""
        if self._items.pop(key_of(item), None) is None:
            return None
        return item, None

    def replace(self, items: Iterable[T]) -> list[Change[T]]:
        """Keep exactly these objects; return what changed by that, what went away last."""
        current = {key_of(item): item for item in items}
        gone = [item for key, item in self._items.items() if key not in current]
        changes = [change for item in current.values() if (change := self.put(item)) is not None]
        changes.extend(change for item in gone if (change := self.remove(item)) is not None)
        return changes
