"""Which changes of the OSC Secret count, and how long they wait."""

from datetime import timedelta

import pytest

from agents.kube.models import Node, ObjectMeta, Secret
from nodeagent.controllers.operatingsystemconfig.trigger import (
    DELAY_ANNOTATION,
    SERIAL_ANNOTATION,
    JitterDelay,
    content_changed,
    to_secret,
)


def secret(data: dict[str, bytes], **annotations: str) -> Secret:
    """Return an OSC Secret."""
    return Secret(metadata=ObjectMeta(name="osc", namespace="kube-system", annotations=annotations), data=data)


def node(annotations: dict[str, str]) -> Node:
    """Return a Node with annotations."""
    return Node(metadata=ObjectMeta(name="n", annotations=annotations))


OLD = secret({"osc.yaml": b"1"})
NEW = secret({"osc.yaml": b"2"})


@pytest.mark.parametrize(
    ("old", "new", "accepted"),
    [
        (None, NEW, True),
        (OLD, NEW, True),
        (OLD, secret({"osc.yaml": b"1", "other": b"2"}), False),
        (OLD, secret({"osc.yaml": b"1"}, checksum="x"), False),
        (OLD, secret({"osc.yaml": b"1", "osc.yaml.br": b"2"}), False),
        (secret({"osc.yaml.br": b"1"}), secret({"osc.yaml.br": b"2"}), True),
        (OLD, None, False),
    ],
)
def test_only_changed_osc_bytes_count(old: Secret | None, new: Secret | None, accepted: bool) -> None:
    """Contract 6.1, Appendix C (triggers): an added Secret and changed effective bytes are accepted; annotations and other keys are not."""
    assert content_changed(old, new) is accepted


def test_delay_comes_from_the_node_and_is_remembered() -> None:
    """Contract 6.1, Appendix C (triggers): the last delay that could be read serves while Node or annotation cannot be read."""
    current: list[Node | None] = [node({DELAY_ANNOTATION: "1m30s"})]
    delay = JitterDelay(node_name=lambda: "n", node=lambda: current[0])
    assert delay(OLD, NEW) == timedelta(seconds=90)
    for unreadable in (node({DELAY_ANNOTATION: "soon"}), node({}), None):
        current[0] = unreadable
        assert delay(OLD, NEW) == timedelta(seconds=90)
    current[0] = node({DELAY_ANNOTATION: "0s"})
    assert delay(OLD, NEW) == timedelta(0)


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [(None, NEW, "n"), (OLD, secret({"osc.yaml": b"2"}, **{SERIAL_ANNOTATION: "true"}), "n"), (OLD, NEW, None)],
)
def test_no_delay_at_first_in_serial_mode_or_without_a_node(old: Secret | None, new: Secret, name: str | None) -> None:
    """Contract 6.1, Appendix C (triggers): an added Secret, serial mode and an unknown node name have no delay."""
    delay = JitterDelay(node_name=lambda: name, node=lambda: node({DELAY_ANNOTATION: "5m"}))
    assert delay(old, new) == timedelta(0)


def test_serial_is_only_the_word_true() -> None:
    """Contract 5.1: any other value than "true" is off, so the delay applies."""
    delay = JitterDelay(node_name=lambda: "n", node=lambda: node({DELAY_ANNOTATION: "5m"}))
    assert delay(OLD, secret({"osc.yaml": b"2"}, **{SERIAL_ANNOTATION: "True"})) == timedelta(minutes=5)


def test_a_node_maps_to_the_one_secret() -> None:
    """The Node that appears brings the key of the configured Secret."""
    (request,) = to_secret("kube-system", "osc")(node({}))
    assert (request.namespace, request.name) == ("kube-system", "osc")
