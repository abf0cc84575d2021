"""The writes that controllers have in common; none of them can lose a field that we do not know.

What exists is read whole, changed in a copy, and sent as the JSON merge patch of what differs: that works on core kinds, on CRDs and on
an aggregated API server alike. Nothing is sent if nothing differs. With `lock` the patch carries the resource version that it was
computed from, so somebody's write in between is a `Conflict`. Source: gardener pkg/controllerutils (contract controllers 2.3).
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from typing import Any

from agents.kube.client import Client
from agents.kube.errors import AlreadyExists, Conflict, NotFound
from agents.kube.objects import Document, KubeObject
from agents.kube.patch import difference, merge
from agents.kube.resource import Resource, whole

Mutate = Callable[[dict[str, Any]], None]
"""Makes of an object's JSON what it shall be; also called with a new object that has only its name."""

ATTEMPTS = 5
"""How often a change is computed anew after a 409."""


class Outcome(Enum):
    """What a write did."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Target:
    """One object to write."""

    resource: Resource[Any]
    name: str
    namespace: str | None = None

    async def read(self, client: Client) -> Document:
        """Read it whole, past any cache.

        Raises:
            NotFound: there is none.
        """
        return await client.get(whole(self.resource), self.name, namespace=self.namespace)

    def new(self) -> dict[str, Any]:
        """Return the beginning of a new object."""
        namespace = {} if self.namespace is None else {"namespace": self.namespace}
        return {"metadata": {"name": self.name, **namespace}}


async def deploy(client: Client, target: Target, mutate: Mutate, *, lock: bool = False) -> tuple[Document, Outcome]:
    """Read, then create or patch: for what normally exists.

    Raises:
        AlreadyExists: somebody created it meanwhile.
        Conflict: `lock`, and somebody changed it meanwhile.
    """
    try:
        found = await target.read(client)
    except NotFound:
        return await _create(client, target, mutate), Outcome.CREATED
    return await patch_changes(client, target, found, mutate, lock=lock)


async def create_or_patch(
    client: Client, target: Target, mutate: Mutate, *, lock: bool = False
) -> tuple[Document, Outcome]:
    """Create, and read and patch if it exists: for what normally does not.

    Raises:
        Conflict: `lock`, and somebody changed it meanwhile.
    """
    try:
        return await _create(client, target, mutate), Outcome.CREATED
    except AlreadyExists:
        found = await target.read(client)
    return await patch_changes(client, target, found, mutate, lock=lock)


async def patch_changes(
    client: Client,
    target: Target,
    found: Document,
    mutate: Mutate,
    *,
    lock: bool = False,
    subresource: str | None = None,
) -> tuple[Document, Outcome]:
    """Patch what a function changes in an object that was read before.

    Raises:
        Conflict: `lock`, and somebody changed it meanwhile.
    """
    changed = deepcopy(dict(found.content))
    mutate(changed)
    body = difference(found.content, changed)
    if not body:
        return found, Outcome.UNCHANGED
    if lock:
        body = _locked(body, found.metadata.resource_version)
    patched = await client.patch(
        whole(target.resource), target.name, merge(body), namespace=target.namespace, subresource=subresource
    )
    return patched, Outcome.CHANGED


async def change_until_done(
    client: Client, target: Target, mutate: Mutate, *, subresource: str | None = None
) -> tuple[Document, Outcome]:
    """Change an object from a fresh read, guarded by its version, and again after each conflict.

    For lists that several write: a merge patch replaces them whole, so it must be made from the list as it is.

    Raises:
        NotFound: there is no such object.
        Conflict: somebody was faster five times in a row.
    """
    attempt = 1
    while True:
        found = await target.read(client)
        try:
            return await patch_changes(client, target, found, mutate, lock=True, subresource=subresource)
        except Conflict:
            if attempt >= ATTEMPTS:
                raise
            attempt += 1


async def add_finalizer(client: Client, target: Target, item: KubeObject, finalizer: str) -> bool:
    """Add a finalizer to an object as it was read; return whether it was missing.

    Raises:
        Conflict: the object is not what was read any more.
    """
    if finalizer in item.metadata.finalizers:
        return False
    await _write_finalizers(client, target, item, [*item.metadata.finalizers, finalizer])
    return True


async def remove_finalizer(client: Client, target: Target, item: KubeObject, finalizer: str) -> bool:
    """Remove a finalizer from an object as it was read; return whether it was there. An object that is gone is fine.

    Raises:
        Conflict: the object is not what was read any more.
    """
    if finalizer not in item.metadata.finalizers:
        return False
    try:
        await _write_finalizers(client, target, item, [name for name in item.metadata.finalizers if name != finalizer])
    except NotFound:
        return False
    return True


async def _create(client: Client, target: Target, mutate: Mutate) -> Document:
    document = target.new()
    mutate(document)
    return await client.create(whole(target.resource), document, namespace=target.namespace)


async def _write_finalizers(client: Client, target: Target, item: KubeObject, finalizers: list[str]) -> None:
    # An empty list is written as null: it is what the API server makes of it anyway.
    body = _locked({"metadata": {"finalizers": finalizers or None}}, item.metadata.resource_version)
    await client.patch(whole(target.resource), target.name, merge(body), namespace=target.namespace)


def _locked(body: Mapping[str, object], version: str) -> dict[str, object]:
    metadata = body.get("metadata")
    known = metadata if isinstance(metadata, Mapping) else {}
    return {**body, "metadata": {**known, "resourceVersion": version}}
