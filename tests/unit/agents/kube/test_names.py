"""What Kubernetes accepts as names, labels, selectors and quantities."""

from fractions import Fraction
from typing import Any

import pytest

from agents.kube import names
from agents.kube.quantity import InvalidQuantity, parse_quantity, whole_quantity


@pytest.mark.parametrize(
    ("text", "label", "subdomain", "qualified", "value"),
    [
        ("a", True, True, True, True),
        ("a-b", True, True, True, True),
        ("a.b", False, True, True, True),
        ("A_b", False, False, True, True),
        ("", False, False, False, True),
        ("-a", False, False, False, False),
        ("a" * 63, True, True, True, True),
        ("a" * 64, False, True, False, False),
        ("example.org/name", False, False, True, False),
        ("/name", False, False, False, False),
        ("a/b/c", False, False, False, False),
        ("a\n", False, False, False, False),
    ],
)
def test_names(text: str, label: bool, subdomain: bool, qualified: bool, value: bool) -> None:
    """Each kind of name is what Kubernetes says it is."""
    found = (names.is_dns_label(text), names.is_dns_subdomain(text), names.is_qualified_name(text))
    assert (*found, names.is_label_value(text)) == (label, subdomain, qualified, value)


@pytest.mark.parametrize(
    ("selector", "problems"),
    [
        ({}, []),
        ({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]}, []),
        ({"matchLabels": {"a": 5}}, ["s.matchLabels.a"]),
        (
            {"matchExpressions": [{"operator": "In", "values": ["a b"]}]},
            ["s.matchExpressions[0].key", "s.matchExpressions[0].values[0]"],
        ),
        ({"matchExpressions": [{"key": "a", "operator": "In"}]}, ["s.matchExpressions[0].values"]),
        ({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}, ["s.matchExpressions[0].values"]),
        ({"matchExpressions": [{"key": "a", "operator": "Like"}]}, ["s.matchExpressions[0].operator"]),
    ],
)
def test_selectors(selector: dict[str, Any], problems: list[str]) -> None:
    """A selector's problems are named with their paths."""
    assert [problem.split(":")[0] for problem in names.selector_problems(selector, "s")] == problems


def test_annotations() -> None:
    """An annotation's value is any text; all of them together have a limit."""
    assert list(names.annotation_problems({"Example.org/a": "any\ntext"}, "a")) == []
    assert len(list(names.annotation_problems({"a": 5, "b c": ""}, "a"))) == 2
    assert len(list(names.annotation_problems({"a": "x" * 300_000}, "a"))) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        (250, 250),
        ("100Gi", 100 * 1024**3),
        ("500m", Fraction(1, 2)),
        ("1e3", 1000),
        ("1E", 10**18),
        ("1.5k", 1500),
        (".5", Fraction(1, 2)),
        ("-2u", Fraction(-2, 1_000_000)),
        ("+1n", Fraction(1, 10**9)),
        ("1E-1", Fraction(1, 10)),
    ],
)
def test_quantities(text: object, value: Fraction | int) -> None:
    """Quantities are exact numbers."""
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "1Kib", "one", True, None, [], "1e", "1e1000000"])
def test_what_is_no_quantity(text: object) -> None:
    """Anything else is refused, and cheaply."""
    with pytest.raises(InvalidQuantity):
        parse_quantity(text)


@pytest.mark.parametrize(("text", "value"), [("1500m", 2), ("-1500m", -1), ("2", 2), ("1n", 1)])
def test_whole_quantities_are_rounded_up(text: str, value: int) -> None:
    """A quantity as an integer is rounded up, as in Go."""
    assert whole_quantity(text) == value
