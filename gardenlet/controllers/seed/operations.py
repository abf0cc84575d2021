"""What an operator asks of a seed by an annotation: new credentials, done at once and independent of everything else.

- `renew-kubeconfig`: our own certificate, by the annotation on its Secret that the rotation follows.
- `renew-garden-access-secrets`, `renew-workload-identity-tokens`: the tokens of others, by taking away the time at which their
  requestors would renew them.

The annotation on the Seed goes when that is done, and only if it still says the same. Source: gardener
pkg/gardenlet/controller/seed/seed/reconciler_reconcile.go (contract core 4.3; ours is no part of the flow, W15).
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agents.core.errors import TerminalError
from agents.core.logging import get_logger
from agents.kube.client import Client, Selector
from agents.kube.errors import NotFound
from agents.kube.models import SECRETS
from agents.kube.objects import Document
from agents.kube.resource import whole
from agents.kube.write import Target, change_until_done, patch_changes
from agents.runtime.cache import Informer
from agents.runtime.controller import Controller
from agents.runtime.predicate import annotation_changed
from agents.runtime.reconcile import Request, Result
from agents.runtime.source import KindSource
from gardenlet.apis.constants import OPERATION
from gardenlet.apis.seed import SEEDS, Seed
from gardenlet.config import SecretReference

log = get_logger(__name__)

RENEW = "renew"
_GARDEN_TOKENS = "resources.gardener.cloud/purpose=token-requestor,resources.gardener.cloud/class=garden"
_GARDEN_RENEWAL = "serviceaccount.resources.gardener.cloud/token-renew-timestamp"
_IDENTITY_TOKENS = "security.gardener.cloud/purpose=workload-identity-token-requestor"
_IDENTITY_RENEWAL = "workloadidentity.security.gardener.cloud/token-renew-timestamp"


class NoKubeconfigSecret(TerminalError):
    """There is no Secret whose kubeconfig could be renewed."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the controller is built from.

    Attributes:
        name: of the Seed.
        garden: where it is.
        seed: where the Secrets are.
        kubeconfig: the Secret with our kubeconfig; None without one.
    """

    name: str
    garden: Client
    seed: Client
    kubeconfig: SecretReference | None


class OperationsReconciler:
    """Does what the annotation says, and takes it away."""

    def __init__(self, parts: Parts, seeds: Informer[Seed]) -> None:
        self._with = parts
        self._seeds = seeds
        self._known: Mapping[str, Callable[[], Awaitable[None]]] = {
            "renew-kubeconfig": self._renew_kubeconfig,
            "renew-garden-access-secrets": lambda: self._renew(_GARDEN_TOKENS, _GARDEN_RENEWAL),
            "renew-workload-identity-tokens": lambda: self._renew(_IDENTITY_TOKENS, _IDENTITY_RENEWAL),
        }

    async def reconcile(self, request: Request) -> Result:
        """Do it; an operation that is not ours is left for whoever knows it."""
        seed = self._seeds.get(request)
        operation = "" if seed is None else seed.metadata.annotations.get(OPERATION, "")
        act = self._known.get(operation)
        if act is None:
            return Result()
        await act()
        log.info("Operation done", operation=operation)

        def mutate(document: dict[str, Any]) -> None:
            annotations = dict(document["metadata"].get("annotations") or {})
            if annotations.get(OPERATION) == operation:
                del annotations[OPERATION]
            document["metadata"]["annotations"] = annotations

        try:
            await change_until_done(self._with.garden, Target(SEEDS, self._with.name), mutate)
        except NotFound:
            log.info("Seed is gone", seed=self._with.name)
        return Result()

    async def _renew_kubeconfig(self) -> None:
        reference = self._with.kubeconfig
        if reference is None:
            raise NoKubeconfigSecret(
                "gardenClientConnection.kubeconfigSecret is not configured, nothing can be renewed"
            )

        def mutate(secret: dict[str, Any]) -> None:
            secret["metadata"]["annotations"] = {**(secret["metadata"].get("annotations") or {}), OPERATION: RENEW}

        await change_until_done(self._with.seed, Target(SECRETS, reference.name, reference.namespace), mutate)

    async def _renew(self, selector: str, annotation: str) -> None:
        """Take away when tokens are to be renewed; what is gone meanwhile needs none."""
        listed = await self._with.seed.list(whole(SECRETS), selector=Selector(label=selector))
        for found in listed.items:
            await self._forget(found, annotation)

    async def _forget(self, found: Document, annotation: str) -> None:
        def mutate(secret: dict[str, Any]) -> None:
            annotations = dict(secret["metadata"].get("annotations") or {})
            annotations.pop(annotation, None)
            secret["metadata"]["annotations"] = annotations

        target = Target(SECRETS, found.metadata.name, found.metadata.namespace)
        try:
            await patch_changes(self._with.seed, target, found, mutate)
        except NotFound:
            return


def new_controller(parts: Parts, seeds: Informer[Seed]) -> Controller:
    """Build the controller; `seeds` has our own Seed."""
    changed = annotation_changed(OPERATION)

    def ours(old: Seed | None, new: Seed | None, /) -> bool:
        return new is not None and new.metadata.name == parts.name and changed(old, new)

    return Controller(
        name="seed-operations",
        reconciler=OperationsReconciler(parts, seeds),
        sources=[KindSource(seeds, predicate=ours)],
    )
