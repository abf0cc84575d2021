"""The Seed's status, and its registration kept as it is configured.

The components of a seed are not reconciled by us yet, and the status says so: the operation stays Processing with that sentence, and no
finalizer is put on the Seed. So nobody takes this seed for one that can host shoots.

Source: gardener pkg/gardenlet/controller/seed/seed/reconciler.go (contract core 5.2 to 5.4).
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agents.core.clock import Clock
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import InvalidResponse, NotFound
from agents.kube.quantity import parse_quantity
from agents.kube.write import Target, change_until_done
from agents.runtime.cache import Informer
from agents.runtime.controller import Controller
from agents.runtime.predicate import generation_changed
from agents.runtime.reconcile import Request, Result
from agents.runtime.source import KindSource
from gardenlet.apis.core import OperationState, OperationType, format_time
from gardenlet.apis.core_objects import CONFIG_MAPS, NAMESPACES
from gardenlet.apis.seed import SEEDS, Seed
from gardenlet.config import Resources
from gardenlet.config_controllers import SeedController

log = get_logger(__name__)

NOT_MANAGED = "The components of this seed are not reconciled by this gardenlet."
IDENTITY = ("kube-system", "cluster-identity")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who writes the status: the container's id, the Pod's name, and Gardener's version."""

    id: str
    name: str
    version: str

    def document(self) -> dict[str, str]:
        """Return it as it stands in the status."""
        return {"id": self.id, "name": self.name, "version": self.version}


@dataclass(frozen=True, slots=True)
class Parts:
    """What the controller is built from.

    Attributes:
        name: of the Seed.
        garden: where it is.
        seed: the cluster that it is about.
        register: makes the Seed what is configured.
        expires: returns until when our certificate is valid, None without one.
    """

    name: str
    garden: Client
    seed: Client
    identity: Identity
    resources: Resources
    settings: SeedController
    register: Callable[[], Awaitable[object]]
    expires: Callable[[], datetime | None]
    clock: Clock


class SeedReconciler:
    """Keeps registration and status."""

    def __init__(self, parts: Parts) -> None:
        self._with = parts
        self._cluster_identity = ""

    async def reconcile(self, request: Request) -> Result:
        """Register again what drifted, and write what is different in the status."""
        await self._with.register()
        version = await self._kubernetes_version()
        identity = self._cluster_identity or await self._find_identity()
        self._cluster_identity = identity

        def mutate(seed: dict[str, Any]) -> None:
            seed["status"] = self._status(seed, version, identity)

        try:
            await change_until_done(self._with.garden, Target(SEEDS, self._with.name), mutate, subresource="status")
        except NotFound:
            log.info("Seed is gone", seed=request.name)
            return Result()
        return Result(requeue_after=self._with.settings.sync_period)

    def _status(self, seed: Mapping[str, Any], version: str, identity: str) -> dict[str, Any]:
        status = dict(seed.get("status") or {})
        status["gardener"] = self._with.identity.document()
        status["observedGeneration"] = seed["metadata"].get("generation")
        status["kubernetesVersion"] = version
        # Immutable: whoever set it first has said it for good.
        status["clusterIdentity"] = status.get("clusterIdentity") or identity
        expires = self._with.expires()
        status["clientCertificateExpirationTimestamp"] = None if expires is None else format_time(expires)
        status["capacity"], status["allocatable"] = _offered(self._with.resources)
        status["lastOperation"] = self._operation(status.get("lastOperation") or {})
        return status

    def _operation(self, old: Mapping[str, Any]) -> dict[str, Any]:
        """Return the operation that never ends, with the time at which it began to be so."""
        wanted = {
            "type": OperationType.RECONCILE.value,
            "state": OperationState.PROCESSING.value,
            "progress": 0,
            "description": NOT_MANAGED,
        }
        same = all(old.get(key) == value for key, value in wanted.items())
        return {
            **wanted,
            "lastUpdateTime": old["lastUpdateTime"] if same and old.get("lastUpdateTime") else self._now(),
        }

    def _now(self) -> str:
        return format_time(self._with.clock.now())

    async def _kubernetes_version(self) -> str:
        """Return the version of the seed's API server."""
        body = await self._with.seed.get_raw("/version")
        try:
            return str(json.loads(body)["gitVersion"])
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidResponse("seed does not say its version", path="/version") from error

    async def _find_identity(self) -> str:
        """Return what the seed calls itself, else the id of its kube-system."""
        namespace, name = IDENTITY
        try:
            said = (await self._with.seed.get(CONFIG_MAPS, name, namespace=namespace)).data.get(name)
        except NotFound:
            said = None
        return said or (await self._with.seed.get(NAMESPACES, namespace)).metadata.uid


def _offered(resources: Resources) -> tuple[dict[str, str] | None, dict[str, str] | None]:
    """Return capacity and what of it can be used; None, which removes them, where none is configured."""
    if not resources.capacity:
        return None, None
    capacity = {name: str(value) for name, value in resources.capacity.items()}
    reserved = resources.reserved
    allocatable = {
        name: _minus(value, reserved[name]) if name in reserved else str(value)
        for name, value in resources.capacity.items()
    }
    return capacity, allocatable


def _minus(capacity: object, reserved: object) -> str:
    left = parse_quantity(capacity) - parse_quantity(reserved)
    if left.denominator == 1:
        return str(left.numerator)
    milli = left * 1000
    return f"{-(-milli.numerator // milli.denominator)}m"


def new_controller(parts: Parts, seeds: Informer[Seed]) -> Controller:
    """Build the controller; `seeds` has our own Seed."""
    return Controller(
        name="seed",
        reconciler=SeedReconciler(parts),
        sources=[KindSource(seeds, predicate=_ours(parts.name))],
    )


def _ours(name: str) -> Callable[[Seed | None, Seed | None], bool]:
    """Accept our own Seed when it appears or is changed; the Seed of a managed seed is in the same list."""

    def accepts(old: Seed | None, new: Seed | None, /) -> bool:
        return new is not None and new.metadata.name == name and generation_changed(old, new)

    return accepts
