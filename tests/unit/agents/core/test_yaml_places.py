"""Places of fields in a YAML text."""

import pytest

from agents.core.yaml_places import Place, Places

TEXT = b"""\
a:
  b.c: 1
  b: {c: 2}
  list:
  - x
  - name: y
empty:
"""


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("a", Place(1, 1)),
        ("a.b.c", Place(2, 3)),
        ("a.list[0]", Place(5, 5)),
        ("a.list[1].name", Place(6, 5)),
        ("a.list[1].missing", Place(6, 5)),
        ("a.list[7]", Place(4, 3)),
        ("a.missing.deeper", Place(1, 1)),
        ("empty.x", Place(7, 1)),
        ("nowhere", None),
        ("", None),
        ("[0]", None),
    ],
)
def test_a_field_is_found_or_what_it_would_be_in(path: str, place: Place | None) -> None:
    """The deepest part of the path that is there; of keys with dots the longest that fits."""
    assert Places(TEXT).find(path) == place


def test_an_empty_text_has_no_places() -> None:
    """There is nothing to point at."""
    assert Places(b"").find("a") is None
