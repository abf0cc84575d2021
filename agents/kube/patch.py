"""Writes as values: what to change, and how the server is to read it.

A patch names only the fields that we own. `strategic` merges lists by their key, so one condition does not erase the
others (contract 9, W9); `merge` is RFC 7386, where null removes a key.
"""

from collections.abc import Mapping
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
