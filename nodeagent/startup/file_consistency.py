"""Once at start: does the disk still hold what was applied? Differences become events and are repaired by the OSC controller.

A reboot with a damaged file system is a known cause. Never fatal. Source: contract 7.11.
"""

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

from agents.core.errors import AgentError
from agents.core.logging import get_logger
from agents.kube.models import Node
from nodeagent.host.consistency import Finding, inspect
from osc.journal import Journal
from osc.merge import Effective, effective
from systemd.manager import UnitManager

log = get_logger(__name__)


class FileConsistency:
    """Start-up step; needs a Node to report on, and a last-applied OSC."""

    def __init__(
        self,
        *,
        journal: Journal,
        units: UnitManager,
        hostname: str,
        root: Path,
        node: Callable[[], Node | None],
        report: Callable[[Node, Finding], None],
        repair: Callable[[Collection[Finding]], None],
    ) -> None:
        self._journal = journal
        self._units = units
        self._hostname = hostname
        self._root = root
        self._node = node
        self._report = report
        self._repair = repair

    async def run(self) -> None:
        """Inspect, report each difference, and hand them over for repair."""
        node = self._node()
        applied = (await asyncio.to_thread(self._journal.load_last_applied)).decoded
        if node is None or applied is None:
            return
        wanted = effective(applied.config, hostname=self._hostname)
        loaded = await self._loaded_units()
        digests = (await asyncio.to_thread(self._journal.load)).secret_digests
        try:
            findings = await asyncio.to_thread(
                lambda: list(
                    inspect(self._untouched(wanted), loaded_units=loaded, secret_digests=digests, root=self._root)
                )
            )
        except OSError as error:
            log.error("Machine not compared with what was applied", error=error)
            return
        for finding in findings:
            log.error("Machine differs from what was applied", reason=finding.reason, finding=finding.message)
            self._report(node, finding)
        self._repair(findings)

    def _untouched(self, applied: Effective) -> Effective:
        """Leave out what an unfinished apply may have changed: that is no damage, and it is finished soon."""
        pending = self._journal.load().pending
        if pending is None:
            return applied
        touched = pending.touched
        return Effective(
            files=tuple(file for file in applied.files if file.path not in touched.paths),
            units=tuple(unit for unit in applied.units if unit.name not in touched.units),
        )

    async def _loaded_units(self) -> Collection[str] | None:
        try:
            return {unit.name for unit in await self._units.list_units()}
        except AgentError as error:
            log.error("Units not listed", error=error)
            return None
