"""Patches are bytes with a content type."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.kube.patch import apply, difference, merge, same, strategic, without_nulls
from tests.support.fake_api import _merged as apply_merge_patch


def test_content_types() -> None:
    """Each kind of patch has its content type; a null survives in a merge patch."""
    assert merge({"a": None}).content_type == "application/merge-patch+json"
    assert json.loads(merge({"a": None}).body) == {"a": None}
    assert strategic({}).content_type == "application/strategic-merge-patch+json"
    assert apply({}, field_manager="m").content_type == "application/apply-patch+yaml"


def test_apply_names_its_manager() -> None:
    """A server-side apply says who owns the fields, and takes them from others only when asked to."""
    assert apply({}, field_manager="m").query == (("fieldManager", "m"),)
    assert apply({}, field_manager="m", force=True).query == (("fieldManager", "m"), ("force", "true"))


def test_body_does_not_show() -> None:
    """A patch does not show its body, which may hold a secret."""
    assert "hidden" not in repr(merge({"data": "hidden"}))


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1}, {}, {"a": None}),
        ({"a": 1}, {"a": None}, {"a": None}),
        ({}, {"a": None}, {}),
        ({}, {"a": {}}, {"a": {}}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, {"a": {"c": None}}),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, {"a": [1, 2, 3]}),
        ({"a": "x"}, {"a": {"b": 1, "c": None}}, {"a": {"b": 1}}),
        ({"a": 1}, {"a": True}, {"a": True}),
    ],
)
def test_difference(old: dict[str, Any], new: dict[str, Any], patch: dict[str, Any]) -> None:
    """Contract controllers 2.3: a merge patch names only what differs, removes with null, and replaces lists whole."""
    assert difference(old, new) == patch


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from("xyz"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


@given(old=OBJECTS, new=OBJECTS)
def test_difference_makes_the_new_of_the_old(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Contract controllers 2.3: applied to the old object the patch gives the new one; nothing is sent for no difference."""
    stored = without_nulls(old)
    assert isinstance(stored, dict)
    patched = apply_merge_patch(stored, json.loads(merge(difference(stored, new)).body), by_type=False)
    assert same(patched, new)
    assert (difference(stored, new) == {}) is same(stored, new)


def test_null_is_absent_and_true_is_not_one() -> None:
    """Contract controllers 2.3: parsed JSON is compared with null as absent, so a default that is written out changes nothing."""
    assert same({"a": None, "b": [{"c": None}]}, {"b": [{}]})
    assert not same({"a": 1}, {"a": True})
    assert not same({"a": {}}, {})
