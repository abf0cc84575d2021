"""The store tells what changed."""

from agents.kube.models import Node
from agents.kube.objects import ObjectMeta
from agents.runtime.reconcile import Request
from agents.runtime.store import Store, key_of


def node(name: str, version: str, **labels: str) -> Node:
    """Return a node."""
    return Node(metadata=ObjectMeta(name=name, resource_version=version, labels=labels))


def test_put_tells_old_and_new() -> None:
    """A new object comes out as (None, new), a changed one as (old, new), a known version as no change."""
    store: Store[Node] = Store()
    first, second = node("a", "1"), node("a", "2")
    assert store.put(first) == (None, first)
    assert store.put(second) == (first, second)
    assert store.put(node("a", "2")) is None
    assert store.get(Request("", "a")) is second


def test_remove_tells_the_last_state() -> None:
    """An object that goes away comes out with the state the server gave last; an unknown one is no change."""
    store: Store[Node] = Store()
    store.put(node("a", "1"))
    last = node("a", "3", stage="last")
    assert store.remove(last) == (last, None)
    assert store.remove(last) is None
    assert len(store) == 0


def test_replace_tells_the_difference() -> None:
    """A list brings in what is new, updates what changed, and drops what it does not contain."""
    store: Store[Node] = Store()
    kept, changed, gone = node("kept", "1"), node("changed", "1"), node("gone", "1")
    store.replace([kept, changed, gone])
    newer, new = node("changed", "2"), node("new", "2")
    assert store.replace([kept, newer, new]) == [(changed, newer), (None, new), (gone, None)]
    assert sorted(key_of(item).name for item in store) == ["changed", "kept", "new"]


def test_iteration_survives_changes() -> None:
    """Whoever iterates sees what was there at the beginning, even if the store changes meanwhile."""
    store: Store[Node] = Store()
    store.replace([node("a", "1"), node("b", "1")])
    seen = []
    for item in store:
        seen.append(item.metadata.name)
        store.replace([])
    assert seen == ["a", "b"]
