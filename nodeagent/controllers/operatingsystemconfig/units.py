"""Unit files, enablement and jobs of the OSC's units.

A job that takes longer than the unit manager waits (10 s) is looked at again in later passes. After three minutes of a unit
that is still activating it is taken as done, with a warning, and the unit stays under watch: a oneshot that never ends
cannot hold back a fleet, and a unit that fails after 12 s is not called applied (contract 6.7, W26).

What began is written down, so that the next process goes on with it and does not start a unit a second time.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from agents.core.clock import Clock
from agents.core.errors import AgentError, RetriableError
from agents.core.logging import get_logger
from nodeagent.controllers.operatingsystemconfig.files import Write
from nodeagent.controllers.operatingsystemconfig.job_record import BegunJob, JobRecord
from nodeagent.host.units_in_use import UnitsInUse
from osc.diff import CommandName
from osc.plan import DisableUnit, EnableUnit, Plan, RemoveUnit, RunUnitCommand, WriteUnit
from systemd.jobs import JobOutcome, JobReport
from systemd.manager import UnitManager
from systemd.unitfiles import FILE_MODE, UnitFiles

log = get_logger(__name__)

USER = "operatingsystemconfig"
PATIENCE = timedelta(minutes=3)
"""How long a job of a unit that is still activating may take before it counts as done."""
LOOK_AGAIN = timedelta(seconds=5)

Notify = Callable[[str, str, str | None], None]
"""Called with operation, unit and error text after each job; errors are None for a success."""


class UnitFailed(RetriableError):
    """A unit's job ended badly."""


@dataclass(slots=True)
class _Job:
    command: CommandName
    since: float
    report: JobReport


def writes(step: WriteUnit, unit_files: UnitFiles) -> list[Write]:
    """Return the files of a unit: its unit file if it has content, and its drop-ins."""
    unit = step.unit
    contents = unit_files.contents(
        unit.name,
        content=None if unit.content is None else unit.content.encode(),
        drop_ins={drop_in.name: drop_in.content.encode() for drop_in in unit.drop_ins},
    )
    return [Write(step.id, path, content, FILE_MODE) for path, content in contents.items()]


def remove_leftovers(step: WriteUnit, unit_files: UnitFiles) -> bool:
    """Remove what left the OSC of a unit that stays. Returns whether anything was there. What others placed stays (W37)."""
    removed = unit_files.remove(step.name, unit_file=step.remove_file, drop_ins=step.remove_drop_ins)
    if removed:
        log.info("Drop-ins or unit file removed", unit=step.name)
    return removed


class UnitJobs:
    """Runs the OSC's unit commands and remembers jobs that have not ended.

    Args:
        units: systemd.
        clock: how long a job takes.
        notify: told about each job's end.
        record: file with what the next process has to know.
        in_use: told which units have a job of ours.
    """

    def __init__(self, *, units: UnitManager, clock: Clock, notify: Notify, record: Path, in_use: UnitsInUse) -> None:
        self._units = units
        self._in_use = in_use
        in_use.also_used(USER, lambda name: name in self._pending)
        self._clock = clock
        self._notify = notify
        self._pending: dict[str, _Job] = {}
        self._record = JobRecord.load(record)
        self._inherited = dict(self._record.jobs)

    def handling(self, plan: Plan, *, checksum: str) -> AbstractContextManager[None]:
        """Tell others, for a block, that the units of a plan are being changed: what fails meanwhile has not failed by itself.

        Args:
            plan: what is about to be carried out.
            checksum: of the OSC. Jobs that an earlier process began for it are gone on with.
        """
        self._record.turn_to(checksum)
        self._inherit(plan)
        kinds = (WriteUnit, EnableUnit, DisableUnit, RemoveUnit, RunUnitCommand)
        return self._in_use.using(*{step.name for step in plan.steps if isinstance(step, kinds)}, by=USER)

    @property
    def pending(self) -> Mapping[str, str]:
        """Items whose job has not ended, and what is known of it."""
        return {f"unit {name}": job.report.reason or "job has not ended" for name, job in self._pending.items()}

    @property
    def under_way(self) -> frozenset[str]:
        """Units with a job that has not ended, also one that the process before this one began."""
        return frozenset((*self._pending, *self._record.jobs))

    @property
    def watched(self) -> frozenset[str]:
        """Units that were taken as started while they were still activating."""
        return self._record.watched

    def forget(self, names: Iterable[str]) -> None:
        """Forget jobs of units whose definition changes: they get a new job."""
        for name in names:
            self._ended(name)
            self._record.watch(name, until_it_ends=False)

    async def run(self, step: RunUnitCommand) -> bool:
        """Run a command, or look at the job that an earlier pass started.

        Returns:
            Whether it is done; False means: look again later.

        Raises:
            UnitFailed: the job ended badly.
            AgentError: systemd could not be asked.
        """
        if step.only_if_exists and not (await self._units.unit(step.name)).fragment_path:
            return True
        return await self._run(step.name, step.command)

    async def stop(self, name: str) -> bool:
        """Stop a unit that leaves; as `run`."""
        return await self._run(name, "stop")

    async def restart(self, name: str) -> None:
        """Restart a unit outside of a plan; a job that takes longer than the unit manager waits goes on by itself.

        Raises:
            UnitFailed, AgentError: as `run`.
        """
        await self._run(name, "restart")
        self._ended(name)

    def _inherit(self, plan: Plan) -> None:
        """Take over, once, what the process before this one began and this plan still asks for."""
        wanted: dict[str, CommandName] = {step.name: "stop" for step in plan.steps if isinstance(step, RemoveUnit)}
        wanted |= {step.name: step.command for step in plan.steps if isinstance(step, RunUnitCommand)}
        for name, begun in self._inherited.items():
            if name in self._record.jobs and wanted.get(name) == begun.command:
                report = JobReport(name, begun.command, JobOutcome.PENDING, job=begun.job)
                self._pending[name] = _Job(begun.command, begun.since, report)
                log.info("Unit command of the process before is gone on with", unit=name, command=begun.command)
            else:
                self._record.end(name)
        self._inherited = {}

    def _ended(self, name: str) -> None:
        self._pending.pop(name, None)
        self._record.end(name)

    async def _run(self, name: str, command: CommandName) -> bool:
        job = self._pending.get(name)
        if job is not None and job.command == command:
            try:
                job.report = await self._units.look(job.report)
            except AgentError as error:
                log.debug("Job not looked at", unit=name, error=error)
                return False
            return await self._judge(name, job)
        since = self._clock.monotonic()
        start = self._units.stop if command == "stop" else self._units.restart

        def queued(name_of_job: str) -> None:
            self._record.begin(name, BegunJob(command=command, job=name_of_job, since=since))

        try:
            with self._in_use.using(name, by=USER):
                job = _Job(command, since, await start(name, queued=queued))
        except AgentError as error:
            self._ended(name)
            self._notify(command, name, str(error))
            raise
        return await self._judge(name, job)

    async def _judge(self, name: str, job: _Job) -> bool:
        report = job.report
        if report.outcome is JobOutcome.PENDING:
            return await self._judge_pending(name, job)
        self._ended(name)
        if report.outcome is JobOutcome.DONE:
            log.info("Unit command done", unit=name, command=job.command)
            self._notify(job.command, name, None)
            return True
        cause = f"{report.outcome.value}: {report.reason}" if report.reason else report.outcome.value
        self._notify(job.command, name, cause)
        raise UnitFailed("unit command failed", unit=name, command=job.command, result=cause)

    async def _judge_pending(self, name: str, job: _Job) -> bool:
        """Take a unit that is still activating after three minutes as started; any other job is waited for."""
        self._pending[name] = job
        waited = self._clock.monotonic() - job.since
        if waited < PATIENCE.total_seconds() or not await self._is_activating(name):
            log.debug("Unit command takes long", unit=name, command=job.command)
            return False
        self._ended(name)
        self._record.watch(name, until_it_ends=True)
        log.error("Unit still activating, taken as started", unit=name, durationSeconds=round(waited))
        self._notify(
            job.command, name, f"still activating after {round(waited)} s ({job.report.reason}), taken as started"
        )
        return True

    async def _is_activating(self, name: str) -> bool:
        try:
            return (await self._units.unit(name)).active_state == "activating"
        except AgentError as error:
            log.debug("Unit not looked at", unit=name, error=error)
            return False

    async def look_at_watched(self) -> None:
        """Report units that failed after they were taken as started; those that ended well are no longer watched."""
        for name in sorted(self._record.watched):
            try:
                state = await self._units.unit(name)
            except AgentError as error:
                log.debug("Unit not looked at", unit=name, error=error)
                continue
            if state.active_state in ("activating", "deactivating", "reloading"):
                continue
            self._record.watch(name, until_it_ends=False)
            if state.active_state == "failed":
                log.error("Unit failed after it was taken as started", unit=name)
                self._notify("restart", name, "failed after it was taken as started")
