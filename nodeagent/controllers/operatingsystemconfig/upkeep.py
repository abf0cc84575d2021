"""Look after an OSC that was applied: what changed behind our back since then, and what is no longer needed.

Source: contract 6.2 step 28, 9 W29, W44.
"""

import asyncio

from agents.core import files as core_files
from agents.core.logging import get_logger
from nodeagent.controllers.operatingsystemconfig.files import Contents
from nodeagent.controllers.operatingsystemconfig.preparation import secret_digests, unknown_secrets
from nodeagent.paths import Paths
from osc.diff import Dirty, changed_secrets
from osc.journal import Journal
from osc.merge import Effective

log = get_logger(__name__)


class Upkeep:
    """Looks; the next pass of the OSC controller repairs.

    Args:
        journal: knows what Secrets held.
        contents: reads Secrets.
        paths: where the machine's files are.
    """

    def __init__(self, *, journal: Journal, contents: Contents, paths: Paths) -> None:
        self._journal = journal
        self._contents = contents
        self._paths = paths

    async def changed_secrets(self, applied: Effective) -> Dirty:
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

    def remove_bootstrap_credentials(self) -> None:
        """Remove the kubelet's bootstrap credentials once it has others (W29)."""
        paths = self._paths
        if paths.kubelet_kubeconfig.exists() and paths.kubelet_client_certificate.exists():
            for path in (paths.kubelet_bootstrap_kubeconfig, paths.bootstrap_token):
                if core_files.remove(path):
                    log.info("Bootstrap credentials removed", path=str(path))
