"""How the seed's system components fare, and whether somebody stopped everything.

Source: gardener pkg/gardenlet/controller/seed/care (contract core 7). As long as nobody manages the components there is nothing that could be
well, and the condition says that.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from agents.core.clock import Clock
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import NotFound
from agents.kube.objects import Document
from agents.kube.write import Target
from agents.runtime.cache import Informer
from agents.runtime.controller import Controller
from agents.runtime.reconcile import Request, Result
from agents.runtime.source import KindSource
from gardenlet.apis.core import Condition, ConditionStatus
from gardenlet.apis.resources import ManagedResource
from gardenlet.apis.seed import SEEDS, Seed
from gardenlet.care import conditions, prometheus
from gardenlet.care.managed_resources import Failure, failures
from gardenlet.config_controllers import SeedCare

log = get_logger(__name__)

HEALTHY = "SeedSystemComponentsHealthy"
EMERGENCY = "EmergencyStopShootReconciliations"
EMERGENCY_ANNOTATION = "shoot.gardener.cloud/emergency-stop-reconciliations"
RUNNING = "SystemComponentsRunning"
RUNNING_MESSAGE = "All system components are healthy."
NOT_MANAGED = "SystemComponentsNotManaged"
NOT_MANAGED_MESSAGE = "No ManagedResource of a system component exists: nobody manages this seed's components."
MANAGED = (HEALTHY, EMERGENCY)
NAMESPACES = ("garden", "istio-system")
LONGEST_CHECK = timedelta(minutes=3)
"""Half of it, or of the period if that is shorter, is for the checks."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the controller is built from.

    Attributes:
        name: of the Seed.
        garden: where its status is.
        seeds: has our own Seed.
        resources: ManagedResources of the namespaces that count.
        monitoring: Prometheus objects whose servers are asked; None without the gate.
    """

    name: str
    garden: Client
    seeds: Informer[Seed]
    resources: Sequence[Informer[ManagedResource]]
    settings: SeedCare
    clock: Clock
    monitoring: Informer[Document] | None = None


class SeedCareReconciler:
    """Writes the two conditions that are ours."""

    def __init__(self, parts: Parts) -> None:
        self._with = parts
        self._thresholds = {one.type: one.duration for one in parts.settings.condition_thresholds}

    async def reconcile(self, request: Request) -> Result:
        """Look, and write what is different."""
        seed = self._with.seeds.get(request)
        if seed is None:
            return Result()
        period = self._with.settings.sync_period
        async with asyncio.timeout(period.total_seconds()):
            monitored = await self._ask_monitoring(min(period, LONGEST_CHECK) / 2)
            await self._write(monitored, emergency=seed.metadata.annotations.get(EMERGENCY_ANNOTATION) == "true")
        return Result(requeue_after=self._with.settings.sync_period)

    async def _ask_monitoring(self, deadline: timedelta) -> list[Failure]:
        """Ask the seed's Prometheus servers; what takes too long is said like what does not answer."""
        if self._with.monitoring is None:
            return []
        try:
            async with asyncio.timeout(deadline.total_seconds()):
                return await prometheus.failures(self._with.monitoring.list())
        except TimeoutError:
            return [Failure(prometheus.ERROR, f"Prometheus servers did not answer within {deadline}")]

    async def _write(self, monitored: Sequence[Failure], *, emergency: bool) -> None:
        def change(found: tuple[Condition, ...]) -> tuple[Condition, ...]:
            return conditions.build(found, self._judge(found, monitored, emergency=emergency), managed=MANAGED)

        # The cached status may be old; what is written is made from a fresh read, and only if it differs.
        cached = self._with.seeds.get(Request("", self._with.name))
        if cached is not None and not conditions.need_update(
            cached.status.conditions, change(cached.status.conditions)
        ):
            return
        try:
            await conditions.write(self._with.garden, Target(SEEDS, self._with.name), change)
        except NotFound:
            log.info("Seed is gone", seed=self._with.name)

    def _judge(
        self, found: tuple[Condition, ...], monitored: Sequence[Failure], *, emergency: bool
    ) -> Iterator[Condition]:
        now = self._with.clock.now()
        old = conditions.find_or_init(found, HEALTHY, now=now)
        items = [item for informer in self._with.resources for item in informer.list() if item.spec.resource_class]
        if not items:
            yield conditions.updated(old, ConditionStatus.FALSE, NOT_MANAGED, NOT_MANAGED_MESSAGE, now=now)
        elif problems := [*failures(items), *monitored]:
            message = "; ".join(problem.message for problem in problems)
            yield conditions.failed(old, problems[0].reason, message, thresholds=self._thresholds, now=now)
        else:
            yield conditions.updated(old, ConditionStatus.TRUE, RUNNING, RUNNING_MESSAGE, now=now)
        if emergency:
            stop = conditions.find_or_init(found, EMERGENCY, now=now)
            yield conditions.updated(
                stop, ConditionStatus.TRUE, EMERGENCY, "Reconciliation of all shoots is stopped.", now=now
            )


def new_controller(parts: Parts) -> Controller:
    """Build the controller."""
    own = [Request("", parts.name)]

    def ours(_item: ManagedResource) -> list[Request]:
        return own

    return Controller(
        name="seed-care",
        reconciler=SeedCareReconciler(parts),
        sources=[
            KindSource(parts.seeds, predicate=_worth_a_look(parts.name)),
            *(KindSource(informer, predicate=_judgement_changed, mapper=ours) for informer in parts.resources),
        ],
        max_backoff=parts.settings.sync_period,
    )


def _worth_a_look(name: str) -> Callable[[Seed | None, Seed | None], bool]:
    """Accept our own Seed when it appears, or when the emergency stop is set or taken away."""

    def accepts(old: Seed | None, new: Seed | None, /) -> bool:
        if new is None or new.metadata.name != name:
            return False
        stops = [item.metadata.annotations.get(EMERGENCY_ANNOTATION) for item in (old, new) if item is not None]
        return old is None or stops[0] != stops[1]

    return accepts


def _judgement_changed(old: ManagedResource | None, new: ManagedResource | None, /) -> bool:
    """Accept a ManagedResource of which something else is to be said than before."""
    if old is None or new is None:
        return True
    return failures([old]) != failures([new]) or old.spec != new.spec
