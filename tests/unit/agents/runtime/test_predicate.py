"""Predicates are pure functions of the old and the new object."""

from collections.abc import Mapping

import pytest

from agents.kube.models import Node, Secret
from agents.kube.objects import KubeObject, ObjectMeta
from agents.runtime import predicate
from agents.runtime.predicate import Predicate


def node(annotations: Mapping[str, str] | None = None, **labels: str) -> Node:
    """Return a node."""
    return Node(metadata=ObjectMeta(name="n", annotations=annotations or {}, labels=labels))


def secret(**data: bytes) -> Secret:
    """Return a Secret."""
    return Secret(metadata=ObjectMeta(name="s"), data=data)


N = node()


@pytest.mark.parametrize(
    ("accepts", "appears", "changes", "goes"),
    [
        (predicate.always, True, True, True),
        (predicate.created, True, False, False),
        (predicate.updated, False, True, False),
        (predicate.deleted, False, False, True),
        (predicate.negate(predicate.created), False, True, True),
        (predicate.any_of(predicate.created, predicate.deleted), True, False, True),
        (predicate.any_of(), False, False, False),
        (predicate.all_of(predicate.always, predicate.updated), False, True, False),
        (predicate.all_of(), True, True, True),
    ],
)
def test_kind_of_change(accepts: Predicate[KubeObject], appears: bool, changes: bool, goes: bool) -> None:
    """Each predicate accepts exactly the kinds of change that it is named for; combinations combine."""
    assert (accepts(None, N), accepts(N, N), accepts(N, None)) == (appears, changes, goes)


@pytest.mark.parametrize(
    ("old", "new", "accepted"),
    [
        (None, node({"key": "a"}), True),
        (None, node(), False),
        (node({"key": "a"}), node({"key": "b"}), True),
        (node({"key": "a"}), node({"key": "a", "other": "x"}), False),
        (node({"key": "a"}), node(), True),
        (node(), node({"key": ""}), True),
        (node({"key": "a"}), None, False),
    ],
)
def test_annotation_changed(old: Node | None, new: Node | None, accepted: bool) -> None:
    """Only another value of the named annotation counts; an object that goes away has none."""
    assert predicate.annotation_changed("key")(old, new) is accepted


@pytest.mark.parametrize(
    ("old", "new", "accepted"),
    [
        (None, node(key="a"), True),
        (node(key="a"), node(key="b"), True),
        (node(key="a"), node({"key": "b"}, key="a"), False),
        (node(key="a"), None, False),
    ],
)
def test_label_changed(old: Node | None, new: Node | None, accepted: bool) -> None:
    """Only another value of the named label counts."""
    assert predicate.label_changed("key")(old, new) is accepted


@pytest.mark.parametrize(
    ("old", "new", "accepted"),
    [
        (None, secret(key=b"a"), True),
        (None, secret(other=b"a"), False),
        (secret(key=b"a"), secret(key=b"b"), True),
        (secret(key=b"a"), secret(key=b"a", other=b"x"), False),
        (secret(key=b"a"), secret(), True),
        (secret(key=b"a"), None, False),
    ],
)
def test_data_changed(old: Secret | None, new: Secret | None, accepted: bool) -> None:
    """Only other bytes under the named key count."""
    assert predicate.data_changed("key")(old, new) is accepted


@pytest.mark.parametrize(
    ("old", "new", "accepted"),
    [
        (None, node(key="a"), True),
        (node(), node(key="a"), True),
        (node(key="a"), node(), False),
        (node(key="a"), None, True),
        (node(key="b"), None, False),
    ],
)
def test_label_is(old: Node | None, new: Node | None, accepted: bool) -> None:
    """The object as it is now must have the label; one that goes away must have had it."""
    assert predicate.label_is("key", "a")(old, new) is accepted


@pytest.mark.parametrize(
    ("old", "new", "accepted"), [(None, 1, True), (1, None, True), (1, 1, False), (1, 2, True), (0, 0, False)]
)
def test_generation_changed(old: int | None, new: int | None, accepted: bool) -> None:
    """Contract controllers 2.2: updates count only if the generation differs; create and delete pass."""

    def item(generation: int | None) -> Node | None:
        return None if generation is None else Node(metadata=ObjectMeta(name="n", generation=generation))

    assert predicate.generation_changed(item(old), item(new)) is accepted


def test_is_deleting() -> None:
    """An object that is being deleted, or was when it went away."""
    going = Node(metadata=ObjectMeta(name="n", deletion_timestamp="2026-01-01T00:00:00Z"))
    assert predicate.is_deleting(None, going)
    assert predicate.is_deleting(N, going)
    assert predicate.is_deleting(going, None)
    assert not predicate.is_deleting(going, N)
    assert not predicate.is_deleting(N, None)
