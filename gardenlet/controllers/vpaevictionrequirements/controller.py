"""Lets vertical pod autoscalers evict pods only to make them larger, always or outside of the maintenance window.

Source: gardener pkg/controller/vpaevictionrequirements (contract core 10; W36).
"""

from datetime import timedelta
from typing import Any

from agents.core.clock import Clock
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import NotFound
from agents.kube.objects import Document
from agents.kube.resource import Resource
from agents.kube.write import Target, change_until_done
from agents.runtime.cache import Informer
from agents.runtime.controller import Controller
from agents.runtime.reconcile import Request, Result
from agents.runtime.source import KindSource
from gardenlet.controllers.vpaevictionrequirements.window import InvalidWindow, Window

log = get_logger(__name__)

SELECTOR = "autoscaling.gardener.cloud/eviction-requirements=managed-by-controller"
RESTRICTION = "eviction-requirements.autoscaling.gardener.cloud/downscale-restriction"
WINDOW = "shoot.gardener.cloud/maintenance-window"
NEVER, IN_WINDOW = "never", "in-maintenance-window-only"
MARGIN = timedelta(minutes=5)
"""A window that is nearly over is over: an eviction takes its time."""
DEADLINE = timedelta(minutes=3)
REQUIREMENT = {"resources": ["memory", "cpu"], "changeRequirement": "TargetHigherThanRequests"}

VERTICAL_POD_AUTOSCALERS = Resource(
    "autoscaling.k8s.io",
    "v1",
    "verticalpodautoscalers",
    "VerticalPodAutoscaler",
    namespaced=True,
    model=Document,
)


class EvictionReconciler:
    """Writes the requirement, or takes it away."""

    def __init__(self, *, client: Client, autoscalers: Informer[Document], clock: Clock) -> None:
        self._client = client
        self._autoscalers = autoscalers
        self._clock = clock

    async def reconcile(self, request: Request) -> Result:
        """Do what is right now, and come back when something else is."""
        found = self._autoscalers.get(request)
        if found is None or found.metadata.deletion_timestamp:
            return Result()
        restriction = found.metadata.annotations.get(RESTRICTION, "")
        if restriction == NEVER:
            await self._write(request, restricted=True)
            return Result()
        if restriction != IN_WINDOW:
            log.error("Annotation says nothing that is known", annotation=RESTRICTION, value=restriction[:100])
            return Result()
        try:
            window = Window.parse(found.metadata.annotations.get(WINDOW, ""))
        except InvalidWindow as error:
            log.error("Annotation is no maintenance window", annotation=WINDOW, error=error)
            return Result()
        now = self._clock.now()
        begin, end = window.occurrence(now)
        inside = begin <= now and now + MARGIN <= end
        await self._write(request, restricted=not inside)
        if inside:
            return Result(requeue_after=end - MARGIN - now + timedelta(seconds=1))
        if now < begin:
            return Result(requeue_after=begin - now)
        following, _ = window.occurrence(end + timedelta(seconds=1))
        return Result(requeue_after=following - now)

    async def _write(self, request: Request, *, restricted: bool) -> None:
        def mutate(autoscaler: dict[str, Any]) -> None:
            spec = dict(autoscaler.get("spec") or {})
            policy = dict(spec.get("updatePolicy") or {})
            if not restricted and "evictionRequirements" not in policy:
                return
            policy["evictionRequirements"] = [REQUIREMENT] if restricted else None
            autoscaler["spec"] = {**spec, "updatePolicy": policy}

        target = Target(VERTICAL_POD_AUTOSCALERS, request.name, request.namespace)
        try:
            await change_until_done(self._client, target, mutate)
        except NotFound:
            log.debug("Autoscaler is gone", name=request.name)


def _worth_a_look(old: Document | None, new: Document | None, /) -> bool:
    if new is None:
        return False
    return (
        old is None
        or old.metadata.generation != new.metadata.generation
        or old.metadata.annotations != new.metadata.annotations
    )


def new_controller(*, client: Client, autoscalers: Informer[Document], clock: Clock, workers: int) -> Controller:
    """Build the controller; `autoscalers` are those that `SELECTOR` names."""
    return Controller(
        name="vpa-eviction-requirements",
        reconciler=EvictionReconciler(client=client, autoscalers=autoscalers, clock=clock),
        sources=[KindSource(autoscalers, predicate=_worth_a_look)],
        concurrency=max(1, workers),
        deadline=DEADLINE,
    )
