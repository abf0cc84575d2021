"""Unit files, enablement and jobs of the OSC's units.

A job that takes longer than the unit manager waits (10 s) is looked at again in later passes. After three minutes of a unit
that is still activating it is taken as done, with a warning, and the unit stays under watch: a oneshot that never ends
cannot hold back a fleet, and a unit that fails after 12 s is not called applied (contract 6.7, W26).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from agents.core import files
from agents.core.clock import Clock
from agents.core.errors import AgentError, RetriableError
from agents.core.logging import get_logger
from nodeagent.controllers.operatingsystemconfig.files import Write
from osc.plan import RemoveUnit, RunUnitCommand, WriteUnit
from osc.types import Unit
from systemd.manager import JobOutcome, JobReport, UnitManager

log = get_logger(__name__)

UNIT_MODE = 0o600
PATIENCE = timedelta(minutes=3)
"""How long a job of a unit that is still activating may take before it counts as done."""
LOOK_AGAIN = timedelta(seconds=5)

Notify = Callable[[str, str, str | None], None]
"""Called with operation, unit and error text after each job; errors are None for a success."""


class UnitFailed(RetriableError):
    """A unit's job ended badly."""


@dataclass(slots=True)
class _Job:
    command: str
    since: float
    report: JobReport


def writes(step: WriteUnit, root: Path) -> Iterator[Write]:
    """Yield the files of a unit: its unit file if it has content, and its drop-ins."""
    unit = step.unit
    if unit.content is not None:
        yield Write(step.id, root / unit.path.lstrip("/"), unit.content.encode(), UNIT_MODE)
    for drop_in in unit.drop_ins:
        yield Write(step.id, _drop_in(unit, drop_in.name, root), drop_in.content.encode(), UNIT_MODE)


def remove_leftovers(step: WriteUnit | RemoveUnit, root: Path) -> bool:
    """Remove drop-ins that left the OSC, and their directory if nothing else is in it. Returns whether anything was there.

    Drop-ins that somebody else placed stay (W37).
    """
    unit = Unit(name=step.name)
    names = step.remove_drop_ins if isinstance(step, WriteUnit) else step.drop_ins
    removed = [files.remove(_drop_in(unit, name, root)) for name in names]
    if isinstance(step, WriteUnit) and step.remove_file:
        removed.append(files.remove(root / unit.path.lstrip("/")))
    if isinstance(step, RemoveUnit) or not step.unit.drop_ins:
        files.remove_directory_if_empty(root / unit.drop_in_directory.lstrip("/"))
    if any(removed):
        log.info("Drop-ins or unit file removed", unit=step.name)
    return any(removed)


def _drop_in(unit: Unit, name: str, root: Path) -> Path:
    return root / unit.drop_in_directory.lstrip("/") / name


class UnitJobs:
    """Runs the OSC's unit commands and remembers jobs that have not ended."""

    def __init__(self, *, units: UnitManager, clock: Clock, notify: Notify) -> None:
        self._units = units
        self._clock = clock
        self._notify = notify
        self._pending: dict[str, _Job] = {}
        self._watched: set[str] = set()

    @property
    def pending(self) -> Mapping[str, str]:
        """Items whose job has not ended, and what is known of it."""
        return {f"unit {name}": job.report.reason or "job has not ended" for name, job in self._pending.items()}

    @property
    def watched(self) -> frozenset[str]:
        """Units that were taken as started while they were still activating."""
        return frozenset(self._watched)

    def forget(self, names: Iterable[str]) -> None:
        """Forget jobs of units whose definition changes: they get a new job."""
        for name in names:
            self._pending.pop(name, None)
            self._watched.discard(name)

    async def run(self, step: RunUnitCommand) -> bool:
        """Run a command, or look at the job that an earlier pass started.

        Returns:
            Whether it is done; False means: look again later.

        Raises:
            UnitFailed: the job ended badly.
            AgentError: systemd could not be asked.
        """
        job = self._pending.get(step.name)
        try:
            if job is not None and job.command == step.command:
                job.report = await self._units.look(job.report)
                return self._judge(step, job)
            if step.only_if_exists and not (await self._units.unit(step.name)).fragment_path:
                return True
            start = self._units.stop if step.command == "stop" else self._units.restart
            job = _Job(step.command, self._clock.monotonic(), await start(step.name))
            return self._judge(step, job)
        except UnitFailed:
            raise
        except AgentError as error:
            self._pending.pop(step.name, None)
            self._notify(step.command, step.name, str(error))
            raise

    def _judge(self, step: RunUnitCommand, job: _Job) -> bool:
        report = job.report
        if report.outcome is JobOutcome.PENDING:
            return self._judge_pending(step, job)
        self._pending.pop(step.name, None)
        if report.outcome is JobOutcome.DONE:
            log.info("Unit command done", unit=step.name, command=step.command)
            self._notify(step.command, step.name, None)
            return True
        cause = f"{report.outcome.value}: {report.reason}" if report.reason else report.outcome.value
        self._notify(step.command, step.name, cause)
        raise UnitFailed("unit command failed", unit=step.name, command=step.command, result=cause)

    def _judge_pending(self, step: RunUnitCommand, job: _Job) -> bool:
        waited = self._clock.monotonic() - job.since
        if waited < PATIENCE.total_seconds():
            self._pending[step.name] = job
            log.debug("Unit command takes long", unit=step.name, command=step.command)
            return False
        self._pending.pop(step.name, None)
        self._watched.add(step.name)
        log.error("Unit still activating, taken as started", unit=step.name, durationSeconds=round(waited))
        self._notify(
            step.command, step.name, f"still not ended after {round(waited)} s ({job.report.reason}), taken as done"
        )
        return True

    async def look_at_watched(self) -> None:
        """Report units that failed after they were taken as started; those that ended well are no longer watched."""
        for name in sorted(self._watched):
            try:
                state = await self._units.unit(name)
            except AgentError as error:
                log.debug("Unit not looked at", unit=name, error=error)
                continue
            if state.active_state in ("activating", "deactivating", "reloading"):
                continue
            self._watched.discard(name)
            if state.active_state == "failed":
                log.error("Unit failed after it was taken as started", unit=name)
                self._notify("restart", name, "failed after it was taken as started")
