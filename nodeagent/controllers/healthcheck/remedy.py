"""Restart a unit that does not answer, but only where the unit is the cause and a restart can help.

A kubelet that does not answer is not restarted while somebody acts on it, while it is still starting (systemd starts it again by
itself when it crashes), while the disk is full, and not more often than the budget allows; Gardener's agent restarts it in
all these cases, about every 90 seconds. Contract 7.5 and 7.9.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from agents.core.clock import Clock
from agents.core.duration import format_duration
from agents.core.errors import AgentError, RetriableError
from agents.core.logging import get_logger
from nodeagent.host.node_events import NodeEvents
from nodeagent.host.restart_budget import RestartBudget
from nodeagent.host.units_in_use import UnitsInUse
from systemd.jobs import JobOutcome
from systemd.manager import UnitManager
from systemd.states import UnitState

log = get_logger(__name__)

CONTROLLER = "health-check"
_DISK_DEADLINE_SECONDS = 10.0
STARTING = timedelta(minutes=5)
"""How long a unit may be activating or deactivating before it counts as stuck; as `systemdUnitCheck.stuckThreshold`."""


class RestartFailed(RetriableError):
    """The unit was to be restarted, and that failed."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a unit is not restarted.

    Attributes:
        kind: which reason; the same one is said once.
        text: the reason in words.
    """

    kind: str
    text: str


class Remedy:
    """Decides on restarts, and makes them.

    Args:
        units: systemd.
        in_use: who acts on which unit.
        budget: how often a unit may be restarted.
        events: where the end of a job is said.
        clock: monotonic time.
        full_disk: returns a directory on a full disk, None if there is none; may block.
        threshold: a unit whose state changed less than this ago has just been started.
    """

    def __init__(
        self,
        *,
        units: UnitManager,
        in_use: UnitsInUse,
        budget: RestartBudget,
        events: NodeEvents,
        clock: Clock,
        full_disk: Callable[[], Path | None],
        threshold: timedelta,
    ) -> None:
        self._units = units
        self._in_use = in_use
        self._budget = budget
        self._events = events
        self._clock = clock
        self._full_disk = full_disk
        self._threshold = threshold
        self._looking: asyncio.Future[Path | None] | None = None

    async def refusal(self, unit: str) -> Refusal | None:
        """Return why a unit must not be restarted now, None if it may be.

        Raises:
            SystemdError: the unit's state could not be read.
        """
        # A thread that hangs on a disk cannot be ended: never a second one, or they would use up those of the whole process.
        if self._looking is None:
            self._looking = asyncio.get_running_loop().run_in_executor(None, self._full_disk)
        done, _ = await asyncio.wait([self._looking], timeout=_DISK_DEADLINE_SECONDS)
        if not done:
            return Refusal("disk", "a disk does not answer, which a restart does not mend")
        looking, self._looking = self._looking, None
        if (path := looking.result()) is not None:
            return Refusal("disk", f"{path} is on a full disk, which a restart does not mend; make room there")
        state = await self._units.unit(unit)
        # From here on nothing is waited for until the job is queued, so nobody can come in between.
        if (user := self._in_use.user(unit)) is not None:
            return Refusal("in use", f"{user} is acting on {unit}")
        if (starting := self._starting(state)) is not None:
            return starting
        if wait := self._budget.wait(unit):
            pause = format_duration(timedelta(seconds=int(wait.total_seconds()) + 1))
            self._budget.refuse()
            count = self._budget.count(unit)
            return Refusal(
                "budget", f"it was restarted {count} times within an hour; not again before {pause} have passed"
            )
        return None

    async def restart(self, unit: str) -> None:
        """Restart a unit; counted before it is done.

        Raises:
            RestartFailed: the job ended badly.
            SystemdError: it could not be started.
        """
        self._budget.spend(unit)
        try:
            with self._in_use.using(unit, by=CONTROLLER):
                report = await self._units.restart(unit)
        except AgentError as error:
            self._events.unit_processed("restart", unit, str(error))
            raise
        if report.outcome in (JobOutcome.DONE, JobOutcome.PENDING):
            # A job that goes on is no failure: the next checks see a unit that is starting, and leave it alone.
            self._events.unit_processed("restart", unit, None)
            return
        cause = f"{report.outcome.value}: {report.reason}" if report.reason else report.outcome.value
        self._events.unit_processed("restart", unit, cause)
        raise RestartFailed("unit not restarted", unit=unit, result=cause)

    def _starting(self, state: UnitState) -> Refusal | None:
        changed = state.changed_monotonic
        age = timedelta.max if changed is None else timedelta(seconds=max(0.0, self._clock.monotonic() - changed))
        changing = state.job is not None or state.active_state in ("activating", "deactivating", "reloading")
        if age < (STARTING if changing else self._threshold):
            return Refusal("starting", f"systemd is at work on it, or has just been: {state.description}")
        return None
