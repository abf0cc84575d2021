"""systemd's manager: reload, enable and disable, jobs, and the state of units.

A job is followed to its end in two ways at once: by the signal `JobRemoved`, matched on the job's path and buffered
before the method's reply is there, and by reading the unit every two seconds. So neither a lost signal nor a bus that
goes away can make anybody wait longer than the job timeout; after it the job is reported as pending and can be looked
at again later (contract 6.7, W26).

Source: gardener pkg/nodeagent/dbus/dbus.go; signatures: org.freedesktop.systemd1(5).
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Protocol
from weakref import WeakValueDictionary

from agents.core.logging import get_logger
from systemd.bus import CALL_DEADLINE_SECONDS, SYSTEM_BUS, Method, SystemBus
from systemd.errors import BusUnavailable, SystemdError, UnitNotFound
from systemd.jobs import OUTCOMES, Command, JobOutcome, JobReport, Queued, inferred
from systemd.states import CHANGED_MONOTONIC, UnitState, plain, read_row, read_state, seconds, sequence
from systemd.units import check_name, is_loadable, object_path

log = get_logger(__name__)

JOB_TIMEOUT = timedelta(seconds=10)
"""How long a job is waited for before it is reported as pending; the Go agent then takes it as done."""
POLL = timedelta(seconds=2)

_DESTINATION = "org.freedesktop.systemd1"
_MANAGER_PATH = "/org/freedesktop/systemd1"
_MANAGER = "org.freedesktop.systemd1.Manager"
_UNIT = "org.freedesktop.systemd1.Unit"
_SERVICE = "org.freedesktop.systemd1.Service"
_PROPERTIES = "org.freedesktop.DBus.Properties"
_ADD_MATCH = Method("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "AddMatch", "s")
_JOB_REMOVED = (
    f"type='signal',sender='{_DESTINATION}',path='{_MANAGER_PATH}',interface='{_MANAGER}',member='JobRemoved'"
)
_METHODS: dict[Command, str] = {"start": "StartUnit", "stop": "StopUnit", "restart": "RestartUnit"}
_JOB_REMOVED_ARGUMENTS = 4
_RUNTIME = False  # for the coming boots, not only until the next one
_FORCE = True  # links that are in the way are replaced
_MOST_REMEMBERED = 512


class UnitManager(Protocol):
    """systemd, as far as the agent uses it."""

    async def reload(self) -> None:
        """Let systemd read all unit files again."""
        ...

    async def enable(self, names: Sequence[str]) -> None:
        """Enable unit files in one call; if that fails one by one, so that the error names the bad one."""
        ...

    async def disable(self, names: Sequence[str]) -> None:
        """Disable unit files, as `enable`."""
        ...

    async def start(self, name: str) -> JobReport:
        """Start a unit and wait for the job."""
        ...

    async def stop(self, name: str, *, queued: Queued | None = None) -> JobReport:
        """Stop a unit and wait for the job; `queued` is told its name once systemd has it."""
        ...

    async def restart(self, name: str, *, queued: Queued | None = None) -> JobReport:
        """Restart a unit, or start it if it does not run, and wait for the job; as `stop`."""
        ...

    async def look(self, report: JobReport) -> JobReport:
        """Return what has become of a pending job, without waiting for it."""
        ...

    async def forget_failure(self, name: str) -> None:
        """Let a unit that failed be inactive; one that is not loaded is fine."""
        ...

    async def unit(self, name: str) -> UnitState:
        """Return the state of a unit."""
        ...

    async def environment(self, name: str) -> dict[str, str]:
        """Return the environment that systemd gives a service, without what comes out of files."""
        ...

    async def list_units(self) -> list[UnitState]:
        """Return all loaded units, without the fields that only `unit` fills."""
        ...

    async def states(self, names: Sequence[str]) -> Mapping[str, UnitState]:
        """Return the states of units by the names that were asked for, in one call, as `list_units`."""
        ...

    async def unit_file_state(self, name: str) -> str:
        """Return `enabled`, `disabled`, `masked`, `static` and so on as the disk has it now; empty without a unit file."""
        ...

    async def last_change(self, name: str) -> float | None:
        """Return when a unit's state changed, in seconds of the monotonic clock; None if it never did."""
        ...

    async def triggered_by(self, name: str) -> Sequence[str]:
        """Return the timers, sockets and paths that start a unit."""
        ...

    async def service_type(self, name: str) -> str:
        """Return a service's type, for example `oneshot`."""
        ...


class SystemdUnitManager:
    """The real systemd, over the system bus.

    Args:
        address: D-Bus address of the system bus.
        job_timeout: how long to wait for a job.
        poll: how often to read the unit while waiting, in case the signal was lost.
        call_deadline: seconds for each call on the bus.
    """

    def __init__(
        self,
        *,
        address: str = SYSTEM_BUS,
        job_timeout: timedelta = JOB_TIMEOUT,
        poll: timedelta = POLL,
        call_deadline: float = CALL_DEADLINE_SECONDS,
    ) -> None:
        self._job_timeout = job_timeout.total_seconds()
        self._poll = poll.total_seconds()
        self._results: OrderedDict[str, str] = OrderedDict()
        self._wakers: dict[str, asyncio.Event] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._bus = SystemBus(
            address=address,
            call_deadline=call_deadline,
            on_connected=self._subscribe,
            on_signal=self._received,
            on_lost=self._wake_all,
        )

    async def close(self) -> None:
        """Close the connection to the bus."""
        await self._bus.close()

    async def reload(self) -> None:
        """Let systemd read all unit files again."""
        await self._bus.call(_manager("Reload"))

    async def enable(self, names: Sequence[str]) -> None:
        """Enable unit files for the coming boots; links that are in the way are replaced."""
        await self._switch(_manager("EnableUnitFiles", "asbb"), names, _RUNTIME, _FORCE)

    async def disable(self, names: Sequence[str]) -> None:
        """Disable unit files."""
        await self._switch(_manager("DisableUnitFiles", "asb"), names, _RUNTIME)

    async def start(self, name: str) -> JobReport:
        """Start a unit and wait for the job."""
        return await self._run("start", name)

    async def stop(self, name: str, *, queued: Queued | None = None) -> JobReport:
        """Stop a unit and wait for the job; `queued` is told its name once systemd has it."""
        return await self._run("stop", name, queued)

    async def restart(self, name: str, *, queued: Queued | None = None) -> JobReport:
        """Restart a unit, or start it if it does not run, and wait for the job; as `stop`."""
        return await self._run("restart", name, queued)

    async def look(self, report: JobReport) -> JobReport:
        """Return what has become of a pending job, without waiting for it."""
        if report.outcome is not JobOutcome.PENDING:
            return report
        return await self._ended(report) or replace(report, reason=(await self.unit(report.unit)).description)

    async def forget_failure(self, name: str) -> None:
        """Let a unit that failed be inactive, so that systemd can forget it; one that is not loaded is fine."""
        check_name(name)
        with contextlib.suppress(UnitNotFound):
            await self._bus.call(_manager("ResetFailedUnit", "s"), name, about={"unit": name})

    async def unit(self, name: str) -> UnitState:
        """Return the state of a unit.

        Raises:
            InvalidUnit: systemd refuses the name.
            SystemdError: it could not be asked.
        """
        check_name(name)
        get_all = Method(_DESTINATION, object_path(name), _PROPERTIES, "GetAll", "s")
        (found,) = await self._bus.call(get_all, _UNIT, about={"unit": name})
        known = {str(key): plain(value) for key, value in found.items()} if isinstance(found, dict) else {}
        is_service = name.endswith(".service") and known.get("LoadState") == "loaded"
        return read_state(name, known, str(await self._property(name, _SERVICE, "Result")) if is_service else "")

    async def unit_file_state(self, name: str) -> str:
        """Return a unit file's state, read anew; empty if there is no unit file.

        Raises:
            InvalidUnit: systemd refuses the name.
            SystemdError: it could not be asked.
        """
        check_name(name)
        try:
            (state,) = await self._bus.call(_manager("GetUnitFileState", "s"), name, about={"unit": name})
        except UnitNotFound:
            return ""
        return str(state)

    async def list_units(self) -> list[UnitState]:
        """Return all loaded units, without the fields that only `unit` fills."""
        (rows,) = await self._bus.call(_manager("ListUnits"))
        return [read_row(row) for row in sequence(rows)]

    async def states(self, names: Sequence[str]) -> Mapping[str, UnitState]:
        """Return the states of units by the names that were asked for, without the fields that only `unit` fills.

        An alias has the state of its unit. A name that cannot have a state is left out: one that systemd refuses, and a
        template.

        Raises:
            SystemdError: they could not be asked.
        """
        wanted = [name for name in dict.fromkeys(names) if is_loadable(name)]
        try:
            (answer,) = await self._bus.call(_manager("ListUnitsByNames", "as"), wanted)
            rows = sequence(answer)
        except BusUnavailable:
            raise
        except SystemdError as error:
            log.debug("Units have no state", units=wanted, error=error)
            rows = ()
        # systemd answers in the order of the names; its own name for a unit may be another one, if an alias was asked for.
        if len(rows) == len(wanted):
            return {name: replace(read_row(row), name=name) for name, row in zip(wanted, rows, strict=True)}
        if len(wanted) == 1:
            return {}
        return {name: state for one in wanted for name, state in (await self.states([one])).items()}

    async def last_change(self, name: str) -> float | None:
        """Return when a unit's state changed, in seconds of the monotonic clock; None if it never did."""
        check_name(name)
        return seconds(await self._property(name, _UNIT, CHANGED_MONOTONIC))

    async def triggered_by(self, name: str) -> Sequence[str]:
        """Return the timers, sockets and paths that start a unit."""
        check_name(name)
        return [str(unit) for unit in sequence(await self._property(name, _UNIT, "TriggeredBy"))]

    async def environment(self, name: str) -> dict[str, str]:
        """Return the environment that systemd gives a service: its own for all, and what the unit adds; without files of variables."""
        check_name(name)
        get = Method(_DESTINATION, _MANAGER_PATH, _PROPERTIES, "Get", "ss")
        (general,) = await self._bus.call(get, _MANAGER, "Environment")
        found = [plain(general)]
        if (await self.unit(name)).load_state == "loaded":
            found.append(await self._property(name, _SERVICE, "Environment"))
        entries = (str(entry).partition("=") for one in found for entry in sequence(one))
        return {key: value for key, _, value in entries}

    async def service_type(self, name: str) -> str:
        """Return a service's type, for example `oneshot`; only units that end in `.service` have one."""
        check_name(name)
        return str(await self._property(name, _SERVICE, "Type"))

    async def _switch(self, method: Method, names: Sequence[str], *flags: bool) -> None:
        if not names:
            return
        for name in names:
            check_name(name)
        try:
            await self._switch_at_once(method, names, *flags)
        except SystemdError:
            if len(names) == 1:
                raise
            await self._switch_one_by_one(method, names, *flags)

    async def _switch_at_once(self, method: Method, names: Sequence[str], *flags: bool) -> None:
        """Enable or disable, and say of which units a link was really made or removed."""
        *_, changes = await self._bus.call(method, list(names), *flags, about={"unit": ", ".join(names)})
        if method.member == "EnableUnitFiles":
            for unit in _units_of_links("symlink", changes, names):
                log.info("Unit enabled", unit=unit)
        else:
            for unit in _units_of_links("unlink", changes, names):
                log.info("Unit disabled", unit=unit)

    async def _switch_one_by_one(self, method: Method, names: Sequence[str], *flags: bool) -> None:
        failed: dict[str, SystemdError] = {}
        for name in names:
            try:
                await self._switch_at_once(method, [name], *flags)
            except SystemdError as error:
                failed[name] = error
        if failed:
            first = next(iter(failed.values()))
            first.fields["units"] = list(failed)
            raise first

    async def _run(self, command: Command, name: str, queued: Queued | None = None) -> JobReport:
        check_name(name)
        async with self._lock(name):
            (job,) = await self._bus.call(_manager(_METHODS[command], "ss"), name, "replace", about={"unit": name})
            log.debug("Job queued", unit=name, command=command, job=job)
            if queued is not None:
                queued(str(job))
            return await self._follow(JobReport(name, command, JobOutcome.PENDING, job=str(job)))

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    async def _follow(self, report: JobReport) -> JobReport:
        """Wait until the job has ended or the time is up."""
        waker = self._wakers.setdefault(report.job, asyncio.Event())
        try:
            async with asyncio.timeout(self._job_timeout):
                while (ended := await self._look_again(report, waker)) is None:
                    pass
                return ended
        except TimeoutError:
            return replace(report, reason=await self._describe(report.unit))
        finally:
            self._wakers.pop(report.job, None)

    async def _look_again(self, report: JobReport, waker: asyncio.Event) -> JobReport | None:
        """Wait for a sign of the job, or the poll interval, then see whether it has ended."""
        if report.job not in self._results:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll):
                    await waker.wait()
        waker.clear()
        try:
            return await self._ended(report)
        except SystemdError as error:
            log.debug("Job not looked at", unit=report.unit, error=error)
            return None

    async def _ended(self, report: JobReport) -> JobReport | None:
        """Return the final report, None while the job is there."""
        if (result := self._results.pop(report.job, None)) is None:
            state = await self.unit(report.unit)
            # The answer comes after all signals that were sent before it, so a job that is gone without a signal
            # ended while there was no connection.
            if (result := self._results.pop(report.job, None)) is None:
                return None if state.job == report.job else inferred(report, state)
        outcome = OUTCOMES.get(result, JobOutcome.FAILED)
        reason = ""
        if outcome is not JobOutcome.DONE:
            reason = await self._describe(report.unit)
            if result not in OUTCOMES:
                reason = f"job result {result}, {reason}"
        return replace(report, outcome=outcome, reason=reason)

    async def _describe(self, name: str) -> str:
        try:
            async with asyncio.timeout(self._poll):
                return (await self.unit(name)).description
        except (SystemdError, TimeoutError) as error:
            return f"state unknown: {error if str(error) else 'no answer'}"

    async def _property(self, name: str, interface: str, member: str) -> object:
        get = Method(_DESTINATION, object_path(name), _PROPERTIES, "Get", "ss")
        (value,) = await self._bus.call(get, interface, member, about={"unit": name})
        return plain(value)

    async def _subscribe(self, bus: SystemBus) -> None:
        await bus.call_during_connect(_ADD_MATCH, _JOB_REMOVED)
        await bus.call_during_connect(_manager("Subscribe"))

    def _received(self, member: str, body: Sequence[object]) -> None:
        """Keep the result of a job; nobody may be waiting for it yet, or any more."""
        if member != "JobRemoved" or len(body) != _JOB_REMOVED_ARGUMENTS:
            return
        job = str(body[1])
        self._results[job] = str(body[3])
        while len(self._results) > _MOST_REMEMBERED:
            self._results.popitem(last=False)
        if (waker := self._wakers.get(job)) is not None:
            waker.set()

    def _wake_all(self) -> None:
        for waker in self._wakers.values():
            waker.set()


def _units_of_links(kind: str, changes: object, names: Sequence[str]) -> list[str]:
    """Return the units whose links were made or removed, each once; an alias counts as the unit that it leads to.

    Args:
        kind: `symlink` or `unlink`.
        changes: systemd's answer: kind, link and, of a new link, the file that it leads to.
        names: what was asked for.
    """
    found: list[str] = []
    for change in sequence(changes):
        what, link, file = (str(part) for part in sequence(change))
        name, target = PurePosixPath(link).name, PurePosixPath(file).name
        if what == kind:
            found.append(target if name not in names and target else name)
    return list(dict.fromkeys(found))


def _manager(member: str, signature: str = "") -> Method:
    return Method(_DESTINATION, _MANAGER_PATH, _MANAGER, member, signature)
