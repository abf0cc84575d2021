"""Writes as values: what to change, and how the server is to read it.

A patch names only the fields that we own, or that we changed (`difference`). `strategic` merges lists by their key, so one condition does not erase the
others (contract 9, W9); `merge` is RFC 7386, where null removes a key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agents.core.yamlio import dump_json


@dataclass(frozen=True, slots=True)
class Patch:
    """Body of a PATCH and its content type."""

    content_type: str
    body: bytes = field(repr=False)
    query: tuple[tuple[str, str], ...] = ()


def merge(document: Mapping[str, object]) -> Patch:
    """Return a JSON merge patch; None as a value removes the key."""
    return Patch("application/merge-patch+json", dump_json(document))


def strategic(document: Mapping[str, object]) -> Patch:
    """Return a strategic merge patch; lists with a merge key are merged by it."""
    return Patch("application/strategic-merge-patch+json", dump_json(document))


def apply(document: Mapping[str, object], *, field_manager: str, force: bool = False) -> Patch:
    """Return a server-side apply of a whole intent.

    Args:
        document: with `apiVersion`, `kind` and `metadata.name`.
        field_manager: owner of the fields.
        force: take fields over from other owners.
    """
    query = [("fieldManager", field_manager)]
    if force:
        query.append(("force", "true"))
    return Patch("application/apply-patch+yaml", dump_json(document), tuple(query))


def difference(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object]:
    """Return the body of the JSON merge patch that makes `new` of `old`; empty if there is nothing to do.

    Lists are replaced whole. None counts as absent, as a merge patch cannot set it.
    """
    patch: dict[str, object] = {key: None for key, value in old.items() if value is not None and new.get(key) is None}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := difference(before, value):
                patch[key] = inner
        elif value is not None and not same(before, value):
            patch[key] = without_nulls(value)
    return patch


def without_nulls(value: object) -> object:
    """Return a JSON value without the keys whose value is null, at any depth outside of lists' own elements."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [without_nulls(item) for item in value]
    return value


def same(first: object, second: object) -> bool:
    """Return whether two JSON values mean the same: null counts as absent, and true is not 1."""
    return dump_json(without_nulls(first)) == dump_json(without_nulls(second))
