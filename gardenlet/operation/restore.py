"""Gives an extension object the state that it had in another seed, and then asks for its restoration.

The object is deployed with the operation `wait-for-state` before. What the ShootState holds is put into its status and into the objects
that this state refers to; only then the operation becomes `restore`, so a kill in between leaves an object that waits, and the next run
does the rest. An object that has a state already is not touched: its extension has begun.

Source: gardener pkg/extensions/customresources.go, pkg/utils/kubernetes/unstructured (contract controllers 2.5, step 6).
"""

import gzip
import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any

from agents.core.clock import Clock
from agents.core.errors import TerminalError
from agents.kube.client import Client
from agents.kube.discovery import find_resource
from agents.kube.patch import merge
from agents.kube.write import Target, deploy
from gardenlet.apis.constants import OPERATION_RESTORE
from gardenlet.apis.extensions import WORKERS, ExtensionObject
from gardenlet.operation.extension import annotate

MACHINE_STATE = "machine-state"

_CONTENT = ("spec", "data", "stringData")
_NOT_RESTORED = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "generation",
        "managedFields",
        "name",
        "namespace",
        "ownerReferences",
        "resourceVersion",
        "uid",
    }
)
"""Metadata that belongs to the object in the other seed."""


class CannotRestore(TerminalError):
    """The ShootState is not what can be restored; only another one can help."""


async def restore_object(
    client: Client, target: Target, deployed: ExtensionObject, shoot_state: Mapping[str, Any], *, clock: Clock
) -> ExtensionObject:
    """Restore the state of an object that was deployed with `wait-for-state`, and ask for its restoration.

    Args:
        client: of the seed.
        target: the object.
        deployed: as it was written.
        shoot_state: `spec` of the ShootState.
        clock: for the timestamp.

    Returns:
        The object as written: `wait_until_ready` needs it.

    Raises:
        CannotRestore: machines are in the ShootState twice, or cannot be decoded.
    """
    if deployed.status.state is None:
        await _restore_state(client, target, deployed, shoot_state)
    return await annotate(client, target, OPERATION_RESTORE, clock=clock)


async def _restore_state(
    client: Client, target: Target, deployed: ExtensionObject, shoot_state: Mapping[str, Any]
) -> None:
    entry = next((entry for entry in _entries(shoot_state, "extensions") if _is_of(entry, target, deployed)), None)
    machines = _machine_state(shoot_state) if target.resource.kind == WORKERS.kind else None
    if machines is not None and entry is not None and entry.get("state") is not None:
        raise CannotRestore("shoot state has the state of the worker and its machines, too", name=target.name)
    # The state goes last: once it is there nothing else is restored any more.
    for resource in _entries(entry or {}, "resources"):
        await _restore_resource(client, target, resource.get("resourceRef") or {}, shoot_state)
    status = {key: entry[key] for key in ("state", "resources") if entry and entry.get(key) is not None}
    if machines is not None:
        status["state"] = _in_namespace(machines, target.namespace or "")
    if status:
        await client.patch(
            target.resource, target.name, merge({"status": status}), namespace=target.namespace, subresource="status"
        )


def _is_of(entry: Mapping[str, Any], target: Target, deployed: ExtensionObject) -> bool:
    return (entry.get("kind"), entry.get("name") or "", entry.get("purpose") or "") == (
        target.resource.kind,
        target.name,
        deployed.spec.purpose,
    )


async def _restore_resource(
    client: Client, target: Target, reference: Mapping[str, Any], shoot_state: Mapping[str, Any]
) -> None:
    """Create or patch one object that a state refers to; one that the ShootState does not hold is left alone."""
    wanted = _identity(reference)
    content = next((item.get("data") for item in _entries(shoot_state, "resources") if _identity(item) == wanted), None)
    if content is None:
        return
    kind = await find_resource(client, reference["apiVersion"], reference["kind"])
    namespace = target.namespace if kind.namespaced else None

    def mutate(document: dict[str, Any]) -> None:
        kept = {key: value for key, value in (content.get("metadata") or {}).items() if key not in _NOT_RESTORED}
        document["metadata"] = {**document["metadata"], **kept}
        for key in _CONTENT:
            if key in content:
                document[key] = content[key]
            else:
                document.pop(key, None)

    await deploy(client, Target(kind, reference["name"], namespace), mutate)


def _identity(reference: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(reference.get(key) for key in ("apiVersion", "kind", "name"))


def _machine_state(shoot_state: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for entry in _entries(shoot_state, "gardener"):
        if (entry.get("name"), entry.get("type")) == (MACHINE_STATE, MACHINE_STATE) and entry.get("data"):
            data: Mapping[str, Any] = entry["data"]
            return data
    return None


def _in_namespace(compressed: Mapping[str, Any], namespace: str) -> Mapping[str, object]:
    """Return compressed machines as they are in another namespace."""
    try:
        text = gzip.decompress(b64decode(compressed.get("state") or "", validate=True))
        state = json.loads(text) if text else {}
        for deployment in (state.get("machineDeployments") or {}).values():
            for item in (*(deployment.get("machines") or ()), *(deployment.get("machineSets") or ())):
                item.setdefault("metadata", {})["namespace"] = namespace
    except (OSError, EOFError, zlib.error, ValueError, AttributeError, TypeError) as error:
        raise CannotRestore("machines in the shoot state cannot be decoded") from error
    packed = gzip.compress(json.dumps(state, separators=(",", ":")).encode(), mtime=0)
    return {"state": b64encode(packed).decode()}


def _entries(document: Mapping[str, Any], key: str) -> Iterable[Mapping[str, Any]]:
    return document.get(key) or ()
