"""Look after what an OSC has brought: what changed behind our back since then, and what is no longer needed.

Source: contract 6.2 step 28, 9 W14, W29, W44.
"""

import asyncio
from collections.abc import Collection
from datetime import timedelta

from agents.core import files as core_files
from agents.core.clock import Clock
from agents.core.logging import get_logger
from nodeagent.controllers.operatingsystemconfig.apply import Applier
from nodeagent.controllers.operatingsystemconfig.drift import Drift
from nodeagent.controllers.operatingsystemconfig.files import Contents
from nodeagent.controllers.operatingsystemconfig.preparation import Preparation, secret_digests, unknown_secrets
from nodeagent.controllers.operatingsystemconfig.units import UnitJobs
from nodeagent.paths import Paths
from osc.diff import Changes, Dirty, OwnRestart, changed_secrets, finished
from osc.journal import Journal
from osc.merge import Effective
from osc.types import OWN_UNIT

log = get_logger(__name__)


class Upkeep:
    """Looks, and has the next preparation count what it saw as changed.

    Args:
        preparation: is told.
        journal: knows what Secrets held, and what has not ended.
        contents: reads Secrets.
        drift: looks at the machine.
        jobs: of units that are still starting.
        applier: leaves things behind that cannot be removed at once.
        sync_period: how often everything is looked at.
        clock: for that.
        paths: where the machine's files are.
    """

    def __init__(
        self,
        *,
        preparation: Preparation,
        journal: Journal,
        contents: Contents,
        drift: Drift,
        jobs: UnitJobs,
        applier: Applier,
        sync_period: timedelta,
        clock: Clock,
        paths: Paths,
    ) -> None:
        self._preparation = preparation
        self._journal = journal
        self._contents = contents
        self._drift = drift
        self._jobs = jobs
        self._applier = applier
        self._sync_seconds = sync_period.total_seconds()
        self._clock = clock
        self._paths = paths
        self._looked_at = clock.monotonic()

    async def look(self, applied: Effective | None) -> None:
        """Look at an OSC that was applied to its end; None if it is not known."""
        await self._jobs.look_at_watched()
        await self._applier.tidy()
        await asyncio.to_thread(self.remove_bootstrap_credentials)
        if applied is None:
            return
        if not self._drift.suspecting and applied.secret_files():
            self._preparation.count(await self._changed_secrets(applied))
        await self._look(applied)

    async def look_beside(self, wanted: Effective, left: Changes) -> None:
        """Look at what an OSC that does not count as applied has brought, as often as at one that does.

        Args:
            wanted: the OSC.
            left: what it has still to do.
        """
        decided = self._decided(wanted, left)
        self._preparation.count(await self._drift.reconsider(wanted, left, decided=decided))
        if self._drift.suspecting or self._clock.monotonic() - self._looked_at >= self._sync_seconds:
            decided |= self._preparation.dirty.restarted
            await self._look(finished(wanted, left), coming=left.touched().all_paths(), decided=decided)

    def remove_bootstrap_credentials(self) -> None:
        """Remove the kubelet's bootstrap credentials once it has others (W29)."""
        paths = self._paths
        if paths.kubelet_kubeconfig.exists() and paths.kubelet_client_certificate.exists():
            for path in (paths.kubelet_bootstrap_kubeconfig, paths.bootstrap_token):
                if core_files.remove(path):
                    log.info("Bootstrap credentials removed", path=str(path))

    def _decided(self, wanted: Effective, left: Changes) -> frozenset[str]:
        """Return the units that get a job in any case; one whose job is under way gets none for what is wrong since."""
        dirty = self._preparation.dirty
        own = {OWN_UNIT} if left.own_restart is not OwnRestart.NONE else set()
        listed = {command.name for command in left.commands} - self._jobs.under_way
        return dirty.restarted | own | listed | {unit.name for unit in wanted.units if dirty.restarts(unit)}

    async def _look(self, wanted: Effective, *, coming: Collection[str] = (), decided: Collection[str] = ()) -> None:
        everything, began = not self._drift.suspecting, self._clock.monotonic()
        self._preparation.count(await self._drift.look(wanted, coming=coming, decided=decided))
        if everything:
            self._looked_at = began

    async def _changed_secrets(self, applied: Effective) -> Dirty:
        """Find files whose Secret holds something else than when they were written (W44), or than they do where that is not known."""
        referenced = applied.secret_files()
        loaded = await asyncio.to_thread(self._journal.load)
        before = loaded.secret_digests
        now = secret_digests(referenced, await self._contents.resolve(referenced))
        changed = changed_secrets(applied, before, now)
        changed |= await asyncio.to_thread(unknown_secrets, before, now, root=self._paths.root)
        if changed:
            log.info("Content of referenced Secrets changed", paths=sorted(changed))
        return Dirty(changed)
