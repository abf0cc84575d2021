"""Knows whether an extraction was interrupted, and finds what it left in containerd.

What ours is must be recognised after a kill at any moment:

- mounts with their snapshots and leases are named after a directory below `tmp/`;
- image records carry a label that they got when they were created;
- the lease that `ctr` holds while it pulls has a random name. So the names of the leases before the first of our pulls
  are written down; of those that came later, the ones that look like a pull's are removed. Somebody else's pull that
  began and has not ended in that time would look the same: it would have to be repeated. Left alone, a lease expires
  after a day.

Without that file and without such a directory there is nothing to clean, and containerd is not asked.
"""

import json
from pathlib import Path

from agents.core import files
from agents.core.errors import AgentError
from agents.core.logging import get_logger
from agents.core.threads import run_to_end
from agents.core.together import both
from nodeagent.host.ctr import Ctr, CtrError, Lease
from nodeagent.paths import Paths

log = get_logger(__name__)

LABEL = "node-agent.gardener.cloud/extraction"
_PULL_LABELS = frozenset({"containerd.io/gc.expire"})


class ExtractionLedger:
    """On disk from before the first pull until everything of the last one is gone."""

    def __init__(self, *, paths: Paths, ctr: Ctr) -> None:
        self._paths = paths
        self._ctr = ctr
        self._known: frozenset[str] | None = None
        self.unpacked_before: set[str] = set()
        """Snapshots that were there when the extraction began."""

    async def open(self) -> None:
        """Write down that an extraction begins.

        Raises:
            AgentError: containerd cannot be asked, or the disk is full.
        """
        leases, snapshots = await both(self._ctr.leases, self._ctr.snapshots)
        self._known = frozenset(lease.id for lease in leases)
        self.unpacked_before = set(snapshots)
        content = json.dumps({"leases": sorted(self._known)}).encode()
        await run_to_end(files.write_atomic, self._paths.extractions, content, mode=0o600)

    async def close(self, *, interrupted: bool) -> None:
        """Write down that no extraction is under way any more.

        Args:
            interrupted: one was; its pull may have left a lease.

        Raises:
            AgentError: containerd cannot be asked; the ledger stays.
        """
        if interrupted:
            await self._remove_pull_leases()
        await run_to_end(files.remove, self._paths.extractions)

    async def has_leftovers(self) -> bool:
        """Tell whether a killed run, also one of another agent, left something; looks at the disk only."""
        return await run_to_end(lambda: self._paths.extractions.exists() or bool(self._directories()))

    async def clean(self) -> None:
        """Remove what a killed run left.

        Raises:
            AgentError: not everything could be removed; what is left is found again the next time.
        """
        prefix = self._paths.image_mounts
        leases = [lease.id for lease in await self._ctr.leases()]
        targets = {path for path in [*leases, *await self._ctr.snapshots()] if path.startswith(prefix)}
        for target in sorted(targets | {str(path) for path in await run_to_end(self._directories)}):
            await self.unmount(Path(target))
        if images := await self._ctr.images(f'labels."{LABEL}"==true'):
            await self._ctr.remove_images(*images)
        self._known = await run_to_end(self._read)
        await self._remove_pull_leases()
        await run_to_end(files.remove, self._paths.extractions)

    async def unmount(self, target: Path) -> None:
        """Unmount an image, remove snapshot and lease, and the directory.

        Raises:
            AgentError: the mount, or what belongs to it, is still there.
        """
        await self._ctr.unmount(target)
        await run_to_end(files.remove_directory_if_empty, target)

    async def _remove_pull_leases(self) -> None:
        if self._known is None:
            return
        for lease in await self._ctr.leases():
            if lease.id not in self._known and _is_pull(lease):
                try:
                    await self._ctr.remove_lease(lease.id)
                except CtrError:
                    # Expired meanwhile, or removed by whoever made it; if not, what it keeps must not be forgotten.
                    if lease.id in {left.id for left in await self._ctr.leases()}:
                        raise
                log.info("Lease of an interrupted pull removed", lease=lease.id)

    def _directories(self) -> list[Path]:
        prefix = Path(self._paths.image_mounts)
        return sorted(prefix.parent.glob(f"{prefix.name}*"))

    def _read(self) -> frozenset[str] | None:
        try:
            document = json.loads(files.read_optional(self._paths.extractions) or b"")
            return frozenset(map(str, document["leases"]))
        except (AgentError, ValueError, TypeError, KeyError):
            return None


def _is_pull(lease: Lease) -> bool:
    return lease.labels == _PULL_LABELS and "/" not in lease.id
