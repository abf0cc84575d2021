"""Remove what a kill left behind: temporary files beside everything that the agent writes, and its scratch directory's content.

Except where an image may still be mounted: what lies below such a mount is not ours to delete. `ImageExtractor.clean`
unmounts first.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

from agents.core import files, trees
from agents.core.errors import AgentError
from agents.core.logging import get_logger
from nodeagent.paths import Paths
from osc.journal import Journal
from osc.types import File, OperatingSystemConfig, Unit

log = get_logger(__name__)


class StaleFiles:
    """Start-up step; first of all, so that nothing else meets half a file."""

    def __init__(self, *, paths: Paths, journal: Journal, others: tuple[Path, ...] = ()) -> None:
        self._paths = paths
        self._journal = journal
        self._others = others

    async def run(self) -> None:
        """Remove them; what cannot be removed is logged and left."""
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        try:
            files.ensure_directory(self._paths.temporary, mode=0o700)
            for leftover in self._paths.temporary.iterdir():
                if leftover == self._paths.extractions or str(leftover).startswith(self._paths.image_mounts):
                    continue
                trees.remove(leftover)
        except (AgentError, OSError) as error:
            log.error("Scratch directory not cleaned", path=str(self._paths.temporary), error=error)
        for path in {*self._own(), *self._managed()}:
            try:
                if removed := files.remove_stale_temporaries([path]):
                    log.info("Stale temporary file removed", path=str(removed[0]))
            except AgentError as error:
                log.debug("Stale temporary file not removed", error=error)

    def _own(self) -> Iterator[Path]:
        paths = self._paths
        yield from (paths.kubeconfig, paths.kubeconfig.with_name("kubeconfig.bak"), paths.last_applied, paths.desired)
        yield from (paths.pending_request, paths.trusted_authorities, paths.extracted)
        yield from (paths.pending_changes, paths.status, paths.own_unit, paths.kubelet_bootstrap_kubeconfig)
        yield from self._others

    def _managed(self) -> Iterator[Path]:
        """Yield what the last OSC and the current one write."""
        last = self._journal.load_last_applied().decoded
        if last is not None:
            yield from self._of(last.config)
        pending = self._journal.load().pending
        if pending is not None:
            yield from (self._at(file.path) for file in pending.changes.files_changed)
            yield from (self._at(path) for path in pending.touched.paths)
            for change in pending.changes.units_changed:
                yield from (self._at(path) for path in change.unit.written_paths())
            for name, unit in pending.touched.units.items():
                touched = Unit(name=name)
                yield self._at(touched.path)
                yield from (self._at(f"{touched.drop_in_directory}/{drop_in}") for drop_in in unit.drop_ins)

    def _of(self, config: OperatingSystemConfig) -> Iterator[Path]:
        everything: tuple[File, ...] = (*config.spec.files, *config.status.extension_files)
        yield from (self._at(file.path) for file in everything)
        for unit in (*config.spec.units, *config.status.extension_units):
            yield from (self._at(path) for path in unit.written_paths())

    def _at(self, path: str) -> Path:
        return self._paths.root / path.lstrip("/")
