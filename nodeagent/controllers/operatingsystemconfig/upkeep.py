"""Look after an OSC that was applied: what changed behind our back since then, and what is no longer needed.

Source: contract 6.2 step 28, 9 W14, W29, W44.
"""

import asyncio

from agents.core import files as core_files
from agents.core.logging import get_logger
from nodeagent.controllers.operatingsystemconfig.containerd import ContainerdFiles
from nodeagent.controllers.operatingsystemconfig.desired import Desired
from nodeagent.controllers.operatingsystemconfig.files import Contents
from nodeagent.controllers.operatingsystemconfig.preparation import dirty_of, secret_digests
from nodeagent.host.consistency import inspect
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
        containerd: looks at files of registries.
        paths: where the machine's files are.
    """

    def __init__(self, *, journal: Journal, contents: Contents, containerd: ContainerdFiles, paths: Paths) -> None:
        self._journal = journal
        self._contents = contents
        self._containerd = containerd
        self._paths = paths

    def has_secrets(self) -> bool:
        """Tell whether content of Secrets is on this machine; blocking."""
        pending = self._journal.load().pending
        return pending is not None and bool(pending.secret_digests)

    async def changed_secrets(self, desired: Desired) -> Dirty:
        """Find files whose Secret holds something else than when they were written (W44)."""
        pending = self._journal.load().pending
        if pending is None or not pending.secret_digests:
            return Dirty()
        referenced = [file for file in desired.effective.files if file.content.secret_ref is not None]
        now = secret_digests(referenced, await self._contents.resolve(referenced))
        changed = changed_secrets(desired.effective, pending.secret_digests, now)
        if changed:
            log.info("Content of referenced Secrets changed", paths=sorted(changed))
        return Dirty(changed)

    async def drift(self, applied: Effective) -> Dirty:
        """Look for files that somebody changed by hand; those that would restart a unit are left alone (W14)."""
        used = {path for unit in applied.units for path in unit.file_paths}
        findings = await asyncio.to_thread(
            lambda: list(inspect(Effective(files=applied.files), loaded_units=None, root=self._paths.root))
        )
        drifted = [finding for finding in findings if finding.path and finding.path not in used]
        for finding in drifted:
            log.info("File was changed by somebody else, repairing", path=finding.path, reason=finding.reason)
        registries = await asyncio.to_thread(
            lambda: frozenset(
                upstream
                for upstream, registry in applied.registries_by_upstream().items()
                if not self._containerd.has_registry(registry)
            )
        )
        for upstream in sorted(registries):
            log.info("Registry was changed by somebody else, repairing", upstream=upstream)
        return dirty_of(drifted) | Dirty(registries=registries)

    def remove_bootstrap_credentials(self) -> None:
        """Remove the kubelet's bootstrap credentials once it has others (W29)."""
        paths = self._paths
        if paths.kubelet_kubeconfig.exists() and paths.kubelet_client_certificate.exists():
            for path in (paths.kubelet_bootstrap_kubeconfig, paths.bootstrap_token):
                if core_files.remove(path):
                    log.info("Bootstrap credentials removed", path=str(path))
