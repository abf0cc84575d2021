"""What became of a pass, in events of the Node and in the status file.

Source: contract 6.2 steps 15 to 28; what failed is named item by item (ours).
"""

from collections.abc import Mapping
from datetime import timedelta

from agents.core.clock import Clock
from agents.core.errors import AgentError, RetriableError
from agents.kube.errors import ApiError
from agents.kube.events import EventRecorder, EventType
from agents.kube.models import Node
from agents.runtime.reconcile import Result
from nodeagent.controllers.operatingsystemconfig import summary
from nodeagent.controllers.operatingsystemconfig.apply_pass import Outcome
from nodeagent.controllers.operatingsystemconfig.units import LOOK_AGAIN, UnitJobs
from nodeagent.host.node_events import reference
from nodeagent.status import StatusBoard
from osc.errors import InvalidOSC
from osc.journal import Journal

CONTROLLER = "operatingsystemconfig"
WAIT_FOR_NODE = timedelta(seconds=5)
FIRST_RETRY = timedelta(milliseconds=5)
LONGEST_RETRY = timedelta(seconds=1000)
_OPERATING_SYSTEM_CONFIG = "operating system config"
_BEFORE = f"{_OPERATING_SYSTEM_CONFIG} before"
"""The one that is kept up beside another one."""


class ApplyFailed(RetriableError):
    """Some items of the OSC could not be applied; all others were."""


class Reporter:
    """Tells operators.

    Args:
        journal: has news about state files.
        recorder: of events.
        status: the status file.
        jobs: knows which units are still starting.
        clock: for the time of the next try.
    """

    def __init__(
        self, *, journal: Journal, recorder: EventRecorder, status: StatusBoard, jobs: UnitJobs, clock: Clock
    ) -> None:
        self._journal = journal
        self._recorder = recorder
        self._status = status
        self._jobs = jobs
        self._clock = clock
        self._failures = 0
        self._refusal: InvalidOSC | None = None

    def event(self, node: Node | None, event_type: EventType, reason: str, note: str) -> None:
        """Record an event of the Node, if there is one."""
        if node is not None:
            self._recorder.event(
                reference(node),
                event_type=event_type,
                reason=reason,
                action="Reconcile",
                note=note,
                controller=CONTROLLER,
            )

    def news(self, node: Node | None) -> None:
        """Tell what was found out about state files; without a Node it is kept."""
        for note in self._journal.take_news() if node is not None else ():
            self.event(node, "Warning", "StateDamaged", note)

    def refuse(self, error: InvalidOSC) -> None:
        """Have the status file say why an OSC is refused, beside all else until one is accepted."""
        self._refusal = error

    def accepted(self) -> None:
        """Note that no OSC is refused."""
        self._refusal = None

    async def refused(self, error: InvalidOSC, node: Node | None) -> None:
        """Tell that an OSC is not applied, with what is wrong with it."""
        self.refuse(error)
        note = f"the operating system config cannot be applied: {error.fields['problems']}"
        self.event(node, "Warning", "OSCInvalid", note)
        await self.failing({})

    async def stopped(self, error: AgentError, node: Node | None) -> None:
        """Tell what stopped a pass as a whole; while the API server is away an event would not reach it either."""
        name = _OPERATING_SYSTEM_CONFIG if self._refusal is None else _BEFORE
        await self.failing({name: error})
        if not isinstance(error, ApiError):
            self.event(node, "Warning", "OSCFailed", f"the operating system config: {error}")

    async def failing(self, causes: Mapping[str, AgentError | str]) -> None:
        """Say what nobody tries again at a known time."""
        await self._list(causes, after=None)
        await self._status.phase("failing")

    async def no_node(self) -> Result:
        """Say that the Node is waited for."""
        await self._list({}, after=None)
        await self._status.phase("waitingForNode")
        return Result(requeue_after=WAIT_FOR_NODE)

    async def not_our_turn(self, wait: timedelta) -> Result:
        """Say that another node of the pool comes first."""
        await self._list({}, after=wait)
        await self._status.phase("waitingForTurn")
        return Result(requeue_after=wait)

    async def not_drained(self, after: timedelta, *, unkept: str) -> Result:
        """Say that the node has to be drained first, and why the machine is not kept up until then, if it is not."""
        await self._list({_BEFORE: unkept} if unkept else {}, after=None)
        await self._status.phase("waitingForDrain")
        return Result(requeue_after=after)

    async def look_again(self, waiting: Mapping[str, str], after: timedelta) -> Result:
        """Say what has not ended."""
        await self._list(waiting, after=after)
        return Result(requeue_after=after)

    def succeeded(self) -> None:
        """Begin to count failures anew."""
        self._failures = 0

    async def failed(self, outcome: Outcome, node: Node | None) -> ApplyFailed:
        """Report what failed. The workqueue's back-off decides on the retry; what has only not ended is looked at sooner."""
        backoff = min(FIRST_RETRY * 2 ** min(self._failures, 20), LONGEST_RETRY)
        self._failures += 1
        waiting = {name: cause for name, cause in outcome.waiting.items() if cause}
        look = LOOK_AGAIN if (self._jobs.pending or waiting) and backoff > LOOK_AGAIN else None
        causes: dict[str, AgentError | str] = {**waiting, **self._jobs.pending, **outcome.failed}
        for note in summary.notes({name: str(error) for name, error in outcome.failed.items()}):
            self.event(node, "Warning", "OSCFailed", note)
        await self._list(causes, after=look or backoff)
        await self._status.phase("failing")
        return ApplyFailed(
            "items could not be applied", after=look, items=sorted(outcome.failed), waiting=len(outcome.waiting)
        )

    async def _list(self, causes: Mapping[str, AgentError | str], *, after: timedelta | None) -> None:
        refused = {} if self._refusal is None else {_OPERATING_SYSTEM_CONFIG: self._refusal}
        next_try = None if after is None else self._clock.now() + after
        await self._status.failing({**refused, **causes}, next_try=next_try)
