"""Patches are bytes with a content type."""

import json

from agents.kube.patch import apply, merge, strategic


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
