"""Deletes pods of the seed that nobody needs any more: left behind by an eviction, a lost node or a rollout, or stuck in deletion.

Every five minutes, over all namespaces but kube-system. What is to go is found first, on pages of a few hundred, and then deleted one by
one, each only if it is still the pod, and in the state, that was judged.

Ours differs: a task of its own instead of a part of seed care, ten times as rare and never all pods in one answer; a pod that is being
deleted is not deleted again before its time is up, and is then forced whatever its reason.

Source: gardener pkg/gardenlet/controller/seed/care/reconciler.go, pkg/utils/kubernetes/pod.go (contract core 7; W43).
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from agents.core.clock import Clock
from agents.core.errors import RetriableError
from agents.core.logging import get_logger
from agents.kube.client import PAGE, Client, DeleteOptions, Selector
from agents.kube.errors import ApiError, Conflict, NotFound
from agents.runtime.controller import Controller
from agents.runtime.reconcile import Request, Result
from agents.runtime.source import StartupSource
from gardenlet.apis.core import moment
from gardenlet.apis.pods import PODS, Pod

log = get_logger(__name__)

PERIOD = timedelta(minutes=5)
STUCK = timedelta(minutes=5)
"""That a pod may take longer than its own grace period to be gone."""
RETRY = timedelta(minutes=1)
NOT_LOOKED_AT = "kube-system"
_REASONS = ("Evicted", "NodeAffinity", "NodeLost", "Preempting")
_SHORTAGE = "OutOf"
_ENDED = ("Failed", "Succeeded")


class PodsLeft(RetriableError):
    """Pods that are to go could not be deleted."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """A pod that is to go.

    Attributes:
        pod: as it was read.
        why: for the log.
        force: at once, without waiting for its node.
    """

    pod: Pod
    why: str
    force: bool = False

    @property
    def options(self) -> DeleteOptions:
        """Return what is said with its deletion."""
        metadata = self.pod.metadata
        if self.force:
            return DeleteOptions(metadata.uid, metadata.resource_version, grace_seconds=0, propagation="Background")
        return DeleteOptions(metadata.uid, metadata.resource_version)


def judge(pod: Pod, now: datetime) -> Garbage | None:
    """Tell whether a pod is to go, and why; None for one that stays."""
    metadata, status = pod.metadata, pod.status
    if metadata.namespace == NOT_LOOKED_AT:
        return None
    if metadata.deletion_timestamp:
        return Garbage(pod, "stuck in deletion", force=True) if _is_stuck(pod, now) else None
    if status.reason.startswith(_SHORTAGE) or any(reason in status.reason for reason in _REASONS):
        return Garbage(pod, status.reason)
    if any((one.type, one.status) == ("DisruptionTarget", "True") for one in status.conditions):
        return Garbage(pod, "DisruptionTarget")
    if status.phase in _ENDED and any(owner.kind == "ReplicaSet" for owner in metadata.owner_references):
        return Garbage(pod, f"{status.phase} pod of a ReplicaSet")
    return None


def _is_stuck(pod: Pod, now: datetime) -> bool:
    """Tell whether a pod should be gone: its time to end is over for long, and force would help."""
    metadata = pod.metadata
    if metadata.deletion_grace_period_seconds == 0 and metadata.finalizers:
        return False
    ends = moment(metadata.deletion_timestamp)
    return ends is not None and ends < now - STUCK


@dataclass(frozen=True, slots=True)
class Parts:
    """What the controller is built from.

    Attributes:
        seed: where the pods are.
        page: pods in one answer.
    """

    seed: Client
    clock: Clock
    page: int = PAGE


class PodGarbageCollector:
    """Looks at all pods, and deletes what nobody needs."""

    def __init__(self, parts: Parts) -> None:
        self._with = parts

    async def reconcile(self, _request: Request) -> Result:
        """Look once.

        Raises:
            PodsLeft: some could not be deleted; the others are.
        """
        left: list[tuple[Pod, ApiError]] = []
        for garbage in [one async for one in self._find()]:
            try:
                await self.delete(garbage)
            except ApiError as error:
                left.append((garbage.pod, error))
        if left:
            pod, reason = left[0]
            first = f"{pod.metadata.namespace}/{pod.metadata.name}"
            raise PodsLeft("pods could not be deleted", pods=len(left), first=first) from reason
        return Result(requeue_after=PERIOD)

    async def _find(self) -> AsyncIterator[Garbage]:
        now, selector = self._with.clock.now(), Selector(field=f"metadata.namespace!={NOT_LOOKED_AT}")
        async for page in self._with.seed.pages(PODS, selector=selector, size=self._with.page):
            for pod in page.items:
                if (garbage := judge(pod, now)) is not None:
                    yield garbage

    async def delete(self, garbage: Garbage) -> None:
        """Delete a pod, unless it is gone or not what was judged any more.

        Raises:
            ApiError: it is still there.
        """
        metadata = garbage.pod.metadata
        try:
            await self._with.seed.delete(PODS, metadata.name, namespace=metadata.namespace, options=garbage.options)
        except (NotFound, Conflict) as error:
            log.debug(
                "Pod is gone, or not what it was", podNamespace=metadata.namespace, pod=metadata.name, error=error
            )
            return
        log.info(
            "Pod deleted",
            podNamespace=metadata.namespace,
            pod=metadata.name,
            reason=garbage.why,
            forced=garbage.force,
        )


def new_controller(parts: Parts) -> Controller:
    """Build the controller; it has one key, which comes back for as long as the process leads."""
    return Controller(
        name="seed-pod-garbage",
        reconciler=PodGarbageCollector(parts),
        sources=[StartupSource([Request("", "pods")])],
        deadline=PERIOD,
        base_backoff=RETRY,
        max_backoff=PERIOD,
    )
