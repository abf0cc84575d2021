"""Look at containerd and the kubelet every 30 s and whenever the Node changes.

Both are asked at the same time, each with a deadline of its own, and judged one after the other: a kubelet without its runtime is
not at fault. What goes wrong with one check never keeps the others from being made. Source: gardener
pkg/nodeagent/controller/healthcheck (contract 7.5; 9 W5, W25, W32, W42).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from agents.core.clock import Clock
from agents.core.errors import AgentError, RetriableError
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.models import Node
from agents.runtime.cache import Informer
from agents.runtime.controller import Controller
from agents.runtime.reconcile import Persistent, Request, Result
from nodeagent.controllers.healthcheck.failure import Failure
from nodeagent.controllers.healthcheck.node_status import FLAPPING, InternalAddress, Readiness
from nodeagent.controllers.healthcheck.remedy import CONTROLLER, Remedy
from nodeagent.host.node_events import NodeEvents
from nodeagent.host.node_identity import NodeIdentity, OwnNodeSource
from nodeagent.host.not_asked import NotAsked
from nodeagent.host.restart_budget import RestartBudget
from nodeagent.host.units_in_use import UnitsInUse
from systemd.manager import UnitManager

log = get_logger(__name__)

PERIOD = timedelta(seconds=30)
THRESHOLD = timedelta(minutes=1)
CONTAINERD_UNIT = "containerd.service"
KUBELET_UNIT = "kubelet.service"


class ChecksFailed(RetriableError):
    """Several checks could not be finished; `causes` names each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What the checks work with.

    Attributes:
        client: the API server.
        nodes: Nodes.
        identity: which Node is ours.
        units: systemd.
        in_use: who acts on which unit.
        budget: how often a unit may be restarted.
        events: where everything is said.
        clock: monotonic time.
        containerd_version: returns if containerd answers.
        kubelet_healthy: returns if the kubelet says that it is healthy.
        addresses: returns the machine's addresses; may block.
        full_disk: returns a directory on a full disk, None if there is none; may block.
    """

    client: Client
    nodes: Informer[Node]
    identity: NodeIdentity
    units: UnitManager
    in_use: UnitsInUse
    budget: RestartBudget
    events: NodeEvents
    clock: Clock
    containerd_version: Callable[[], Awaitable[str]]
    kubelet_healthy: Callable[[], Awaitable[None]]
    addresses: Callable[[], Collection[IPv4Address | IPv6Address]]
    full_disk: Callable[[], Path | None]


class HealthReconciler:
    """Makes all checks on one Node."""

    def __init__(self, dependencies: Dependencies, *, threshold: timedelta = THRESHOLD) -> None:
        self._with = dependencies
        events, clock = dependencies.events, dependencies.clock
        remedy = Remedy(
            units=dependencies.units,
            in_use=dependencies.in_use,
            budget=dependencies.budget,
            events=events,
            clock=clock,
            full_disk=dependencies.full_disk,
            threshold=threshold,
        )

        def failure(name: str, unit: str) -> Failure:
            return Failure(name=name, unit=unit, remedy=remedy, events=events, clock=clock, threshold=threshold)

        self._containerd = failure("containerd", CONTAINERD_UNIT)
        self._kubelet = failure("kubelet", KUBELET_UNIT)
        self._readiness = Readiness(clock=clock)
        self._address = InternalAddress(
            client=dependencies.client, addresses=dependencies.addresses, kubelet=self._kubelet
        )
        self._not_asked: dict[str, str] = {}

    async def reconcile(self, request: Request) -> Result:
        """Make all checks; what could not be finished is tried again."""
        node = self._with.nodes.get(request)
        if node is None:
            return Result()
        if self._readiness.observe(node):
            log.error("Kubelet keeps changing between ready and not ready")
            self._kubelet.say("Warning", FLAPPING)
        async with asyncio.TaskGroup() as group:
            containerd = group.create_task(_outcome(self._with.containerd_version()))
            kubelet = group.create_task(_outcome(self._with.kubelet_healthy()))
            address = group.create_task(_outcome(self._address.ensure(node)))
        problems = [
            await _outcome(self._judge_containerd(containerd.result())),
            address.result(),
            await _outcome(self._judge_kubelet(kubelet.result(), containerd.result())),
        ]
        _raise([problem for problem in problems if problem is not None])
        return Result(requeue_after=PERIOD)

    async def _judge_containerd(self, error: Exception | None) -> None:
        if error is None:
            self._not_asked.pop("containerd", None)
            self._containerd.over()
        elif isinstance(error, NotAsked):
            self._containerd.not_looked_at()
            if self._is_news("containerd", error):
                log.error("Containerd cannot be checked", error=error)
                self._containerd.say("Warning", f"containerd cannot be checked: {error}")
        elif isinstance(error, AgentError):
            await self._containerd.goes_on(error)
        else:
            raise error

    async def _judge_kubelet(self, error: Exception | None, containerd: Exception | None) -> None:
        if error is None:
            self._not_asked.pop("kubelet", None)
            self._kubelet.over()
        elif isinstance(error, NotAsked):
            self._kubelet.not_looked_at()
            if self._is_news("kubelet", error):
                log.error("Kubelet cannot be checked", error=error)
                self._kubelet.say("Warning", f"kubelet cannot be checked: {error}")
        elif isinstance(error, AgentError):
            runtime_fails = isinstance(containerd, AgentError) and not isinstance(containerd, NotAsked)
            elsewhere = "containerd is unhealthy, and the kubelet cannot work without it" if runtime_fails else None
            await self._kubelet.goes_on(error, elsewhere=elsewhere)
        else:
            raise error

    def _is_news(self, check: str, error: NotAsked) -> bool:
        """Tell whether it has not been said yet that something cannot be checked, which is no reason to restart it."""
        before = self._not_asked.get(check)
        self._not_asked[check] = error.message
        return before != error.message


async def _outcome(body: Awaitable[object]) -> Exception | None:
    """Wait for something and return how it failed, None if it did not."""
    try:
        await body
    except Exception as error:  # noqa: BLE001 - returned, judged or raised when the other checks have been made
        return error
    return None


def _raise(problems: Sequence[Exception]) -> None:
    if len(problems) == 1:
        raise problems[0]
    if problems:
        causes = [str(problem) or type(problem).__name__ for problem in problems]
        raise ChecksFailed("checks could not be finished", causes=causes) from problems[0]


def new_controller(dependencies: Dependencies, *, threshold: timedelta = THRESHOLD) -> Controller:
    """Build the controller; `threshold` is how long something fails before it is restarted."""
    return Controller(
        name=CONTROLLER,
        reconciler=Persistent(HealthReconciler(dependencies, threshold=threshold)),
        sources=[OwnNodeSource(dependencies.identity)],
        max_backoff=PERIOD,
    )
