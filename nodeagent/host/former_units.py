"""Whether units of the operating system were enabled and running before an OSC replaced their files: noted, and so again.

It is noted beside the original of the unit file, before the first change to the unit, and stays there as long as the original.
Only units whose file in /etc/systemd/system was replaced, or whose file in /usr/lib got one in front of it there: one that got
nothing but drop-ins from an OSC keeps what that made of its enablement, as with Gardener's agent.
"""

from pathlib import Path

from agents.core.logging import get_logger
from agents.core.threads import run_to_end
from nodeagent.host.originals import FormerUnit, Originals
from osc.types import UNIT_DIRECTORY
from systemd.errors import BusUnavailable, SystemdError
from systemd.jobs import JobOutcome
from systemd.manager import UnitManager
from systemd.units import find_fragment, unit_path

log = get_logger(__name__)

_RUNNING = frozenset(("active", "activating", "reloading"))


class FormerUnits:
    """What units were before us.

    Args:
        originals: the ledger.
        units: systemd.
        root: where the machine's file system starts.
    """

    def __init__(self, *, originals: Originals, units: UnitManager, root: Path) -> None:
        self._originals = originals
        self._units = units
        self._root = root

    async def note(self, name: str) -> None:
        """Note how a unit is whose files are about to be written; nothing if it is ours alone, or noted already.

        Raises:
            AgentError: it is not noted; the unit may not be changed.
        """
        path = f"{UNIT_DIRECTORY}/{name}"
        if await run_to_end(self._originals.former_unit, path) is not None:
            # Ours once more before it was as it had been.
            await run_to_end(self._originals.owe_unit, path, owed=False)
        elif await run_to_end(self._is_untouched, name):
            await run_to_end(self._originals.note_unit, path, await self._look(name))

    async def is_back(self, name: str) -> None:
        """Note that a unit's original file is back, and that the unit is owed the rest.

        Raises:
            FileError: it is not noted.
        """
        await run_to_end(self._originals.owe_unit, f"{UNIT_DIRECTORY}/{name}", owed=True)

    async def restore_owed(self) -> None:
        """Restore all that is owed; systemd must have read their files.

        Raises:
            AgentError: some is still owed.
        """
        for path in await run_to_end(lambda: self._originals.owed_units):
            await self.restore(path.rpartition("/")[2])
            await run_to_end(self._originals.owe_unit, path, owed=False)

    async def restore(self, name: str) -> None:
        """Enable and start a unit that was enabled and ran before us; what systemd refuses is logged. Safe to repeat.

        Raises:
            AgentError: systemd could not be asked.
        """
        former = await run_to_end(self._originals.former_unit, f"{UNIT_DIRECTORY}/{name}")
        if former is None:
            return
        try:
            if former.enabled:
                await self._units.enable([name])
            if former.active and (await self._units.unit(name)).active_state not in _RUNNING:
                report = await self._units.start(name)
                if report.outcome not in (JobOutcome.DONE, JobOutcome.PENDING):
                    log.error("Unit of before does not start", unit=name, result=report.outcome.value)
        except BusUnavailable:
            raise
        except SystemdError as error:
            log.error("Unit not as before", unit=name, error=error)
            return
        log.info("Unit as before", unit=name, enabled=former.enabled, active=former.active)

    def _is_untouched(self, name: str) -> bool:
        """Tell whether a unit of the operating system still has, or has again, the file that was there before us."""
        path = f"{UNIT_DIRECTORY}/{name}"
        if self._originals.has(path):
            return self._originals.is_in_place(path)
        fragment = find_fragment(name, root=self._root)
        return fragment is not None and fragment != unit_path(name, root=self._root)

    async def _look(self, name: str) -> FormerUnit:
        try:
            file_state = await self._units.unit_file_state(name)
            state = await self._units.unit(name)
        except BusUnavailable:
            raise
        except SystemdError as error:
            log.debug("Unit not looked at", unit=name, error=error)
            return FormerUnit(enabled=False, active=False)
        return FormerUnit(enabled=file_state == "enabled", active=state.active_state in _RUNNING)
