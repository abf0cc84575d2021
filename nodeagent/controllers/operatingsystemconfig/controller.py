"""Reconcile the OSC Secret: decide what is left to do, have it done, and say so on the Node.

Nothing on the machine changes before the OSC was decoded and validated and the journal is on the disk. Source: gardener
pkg/nodeagent/controller/operatingsystemconfig/reconciler.go (contract 6.2 to 6.10).
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from agents.core import files as core_files
from agents.core.clock import Clock
from agents.core.errors import AgentError, RetriableError
from agents.core.logging import get_logger
from agents.core.memory import release_memory
from agents.core.shutdown import Shutdown
from agents.core.threads import run_to_end
from agents.kube.client import Client
from agents.kube.events import EventRecorder, EventType
from agents.kube.models import NODES, Node, Secret
from agents.kube.patch import merge
from agents.runtime.cache import Informer
from agents.runtime.reconcile import Request, Result
from nodeagent.config import full_version
from nodeagent.controllers.operatingsystemconfig import desired as desired_module
from nodeagent.controllers.operatingsystemconfig import node_metadata
from nodeagent.controllers.operatingsystemconfig.apply import Applier, Outcome
from nodeagent.controllers.operatingsystemconfig.desired import Desired
from nodeagent.controllers.operatingsystemconfig.files import Contents, digest
from nodeagent.controllers.operatingsystemconfig.units import LOOK_AGAIN, UnitJobs
from nodeagent.host.consistency import Finding, inspect
from nodeagent.host.node_events import reference
from nodeagent.host.node_identity import NodeIdentity
from nodeagent.paths import Paths
from nodeagent.status import StatusBoard
from osc import codec
from osc.codec import dump_state
from osc.diff import Changes, Dirty, Touched, add_dirty, changed_secrets, diff
from osc.errors import InvalidOSC
from osc.journal import Journal
from osc.merge import Effective, effective
from osc.plan import plan
from osc.types import File, OperatingSystemConfig

log = get_logger(__name__)

CONTROLLER = "operatingsystemconfig"
WAIT_FOR_NODE = timedelta(seconds=5)
FIRST_RETRY = timedelta(milliseconds=5)
LONGEST_RETRY = timedelta(seconds=1000)
_STATE_MODE = 0o600


class NodeUnknown(RetriableError):
    """The name of our Node is known, the object is not in the cache."""


class ApplyFailed(RetriableError):
    """Some items of the OSC could not be applied; all others were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What the reconciler works with."""

    secrets: Informer[Secret]
    identity: NodeIdentity
    client: Client
    recorder: EventRecorder
    journal: Journal
    applier: Applier
    jobs: UnitJobs
    status: StatusBoard
    shutdown: Shutdown
    clock: Clock
    paths: Paths
    sync_period: timedelta
    kubernetes_version: str


class OperatingSystemConfigReconciler:
    """One pass over the OSC Secret."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._with = dependencies
        self._contents = Contents(client=dependencies.client)
        self._dirty = Dirty()
        self._failures = 0
        self._stated = ""

    def repair(self, findings: Collection[Finding]) -> None:
        """Have the next pass write these items again."""
        self._dirty = Dirty(
            self._dirty.paths | {finding.path for finding in findings if finding.path},
            self._dirty.units | {finding.unit for finding in findings if finding.unit},
        )

    async def reconcile(self, request: Request) -> Result:
        """Bring the machine closer to the OSC."""
        secret = self._with.secrets.get(request)
        if secret is None:
            log.debug("Secret is gone")
            return Result()
        node = self._node()
        try:
            announced = desired_module.checksum(secret)
            if await self._is_applied(announced.value, node) and not await self._needs_repair(secret, node):
                return await self._rest()
            if not announced.matches:
                log.error("Checksum annotation differs from the data, reporting the annotation")
            desired = await self._read(secret)
        except InvalidOSC as error:
            await self._refuse(error, node)
            raise
        await self._label(node, desired.decoded.config)
        return await self._apply(desired, node)

    async def _read(self, secret: Secret) -> Desired:
        return await asyncio.to_thread(
            desired_module.read, secret, hostname=self._with.identity.hostname, paths=self._with.paths
        )

    def _node(self) -> Node | None:
        """Return our Node, None while there is none.

        Raises:
            NodeUnknown: there was one, and it is gone.
        """
        node = self._with.identity.node
        if node is None and self._with.identity.name is not None:
            raise NodeUnknown("node is not known", node=self._with.identity.name)
        return node

    async def _is_applied(self, checksum: str, node: Node | None) -> bool:
        """Tell whether the Node says so, no other apply was begun since or left unfinished, and nothing needs repair."""
        if node_metadata.applied_checksum(node) != checksum or self._dirty.paths or self._dirty.units:
            return False
        pending = (await asyncio.to_thread(self._with.journal.load)).pending
        return pending is None or (pending.checksum == checksum and not pending.unfinished)

    async def _refuse(self, error: InvalidOSC, node: Node | None) -> None:
        self._event(
            node,
            "Warning",
            "OSCInvalid",
            "Reconcile",
            f"the operating system config cannot be applied: {error.fields['problems']}",
        )
        await self._with.status.failing({"operating system config": error}, next_try=None)
        await self._with.status.phase("failing")

    async def _label(self, node: Node | None, config: OperatingSystemConfig) -> None:
        if node is None:
            return
        zone = (
            (await asyncio.to_thread(core_files.read_optional, self._with.paths.zone) or b"")
            .decode(errors="replace")
            .strip()
        )
        labels = node_metadata.missing_labels(node, config, zone)
        if labels:
            patch = merge(node_metadata.labels_patch(labels))
            await self._with.client.patch(NODES, node.metadata.name, patch)
            log.info("Node labelled", node=node.metadata.name, labels=sorted(labels))

    async def _apply(self, desired: Desired, node: Node | None) -> Result:
        prepared = await self._prepare(desired)
        if prepared is None:
            return await self._report(desired, node)
        contents, changes = prepared
        self._with.status.note_phase("applying", checksum=desired.checksum)
        outcome = await self._with.applier.apply(plan(changes, desired.effective), contents)
        if outcome.restart:
            await self._with.status.phase("restarting")
            self._with.shutdown.request("own unit or one of its files changed")
            return Result()
        if outcome.failed:
            raise await self._failed(outcome, node) from next(iter(outcome.failed.values()))
        self._failures = 0
        if outcome.waiting:
            await self._with.status.failing(self._with.jobs.pending, next_try=self._with.clock.now() + LOOK_AGAIN)
            return Result(requeue_after=LOOK_AGAIN)
        await run_to_end(self._with.journal.commit, desired.decoded.document)
        return await self._report(desired, node)

    async def _prepare(self, desired: Desired) -> tuple[Mapping[str, bytes | AgentError], Changes] | None:
        """Compute what is left, and put it into the journal; nothing else on the disk has changed until then.

        Returns:
            Contents and changes, None if this very OSC was applied to its end already.
        """
        journal = self._with.journal
        loaded = await asyncio.to_thread(journal.load)
        last = await asyncio.to_thread(journal.load_last_applied)
        old = effective(last.decoded.config, hostname=self._with.identity.hostname) if last.decoded else None
        dirty, touched = self._dirty, loaded.pending.touched if loaded.pending else Touched()
        if loaded.compare_with_disk or last.torn:
            dirty = await asyncio.to_thread(_compare_with_disk, desired.effective, dirty, self._with.paths.root)
            touched |= await asyncio.to_thread(self._touched_by_desired)
        before = loaded.pending.secret_digests if loaded.pending else {}
        resumed = loaded.pending is not None and loaded.pending.checksum == desired.checksum
        if resumed and loaded.pending is not None and (loaded.pending.unfinished or old is not None):
            changes = add_dirty(loaded.pending.changes, desired.effective, dirty)
            if not changes and last.decoded is not None and last.decoded.document == desired.decoded.document:
                return None
            contents = await self._contents.resolve(changes.files_changed)
            now = _secret_digests(changes.files_changed, contents)
        else:
            contents = await self._contents.resolve(desired.effective.files)
            now = _secret_digests(desired.effective.files, contents)
            dirty = Dirty(dirty.paths | changed_secrets(desired.effective, before, now), dirty.units)
            changes = await asyncio.to_thread(diff, desired.effective, old=old, touched=touched, dirty=dirty)
        await run_to_end(journal.begin, desired.checksum, changes, touched=touched, secret_digests={**before, **now})
        document = await asyncio.to_thread(dump_state, desired.decoded.document)
        # For operators' commands and for a journal that is lost: atomic, but not worth two fsyncs.
        await run_to_end(core_files.write_atomic, self._with.paths.desired, document, mode=_STATE_MODE, sync=False)
        self._dirty = Dirty()
        self._say(desired, changes, resumed=resumed)
        return contents, changes

    def _touched_by_desired(self) -> Touched:
        """Return what the OSC that was asked for last may have touched, for when the journal that knew is lost."""
        try:
            content = core_files.read_optional(self._with.paths.desired)
            if content is None:
                return Touched()
            return Touched.of(effective(codec.decode(content).config, hostname=self._with.identity.hostname))
        except AgentError as error:
            log.error("Desired operating system config unreadable", error=error)
            return Touched()

    def _say(self, desired: Desired, changes: Changes, *, resumed: bool) -> None:
        if self._stated == desired.checksum and not changes:
            return
        self._stated = desired.checksum
        log.info(
            "Operating system config read",
            checksum=desired.checksum[:12],
            resumed=resumed,
            filesChanged=len(changes.files_changed),
            filesDeleted=len(changes.files_deleted),
            unitsChanged=len(changes.units_changed),
            unitsDeleted=len(changes.units_deleted),
        )

    async def _failed(self, outcome: Outcome, node: Node | None) -> ApplyFailed:
        """Report what failed. The workqueue's back-off decides on the retry; jobs that have not ended are looked at sooner."""
        backoff = min(FIRST_RETRY * 2 ** min(self._failures, 20), LONGEST_RETRY)
        look = LOOK_AGAIN if self._with.jobs.pending and backoff > LOOK_AGAIN else None
        self._failures += 1
        causes: dict[str, AgentError | str] = {**self._with.jobs.pending, **outcome.failed}
        note = "; ".join(f"{name}: {error}" for name, error in outcome.failed.items())
        self._event(
            node, "Warning", "OSCFailed", "Reconcile", f"{len(outcome.failed)} items could not be applied: {note}"
        )
        await self._with.status.failing(causes, next_try=self._with.clock.now() + (look or backoff))
        await self._with.status.phase("failing")
        return ApplyFailed(
            "items could not be applied", after=look, items=sorted(outcome.failed), waiting=len(outcome.waiting)
        )

    async def _report(self, desired: Desired, node: Node | None) -> Result:
        """Say on the Node that this OSC was applied; without a Node wait for it."""
        if node is None:
            await self._with.status.failing({}, next_try=None)
            await self._with.status.phase("waitingForNode")
            return Result(requeue_after=WAIT_FOR_NODE)
        await asyncio.to_thread(self._remove_bootstrap_credentials)
        self._event(node, "Normal", "OSCApplied", "Reconcile", "operating system config has been applied")
        version = full_version(self._with.kubernetes_version)
        await self._with.client.patch(
            NODES, node.metadata.name, merge(node_metadata.applied_patch(desired.checksum, version))
        )
        log.info("Operating system config applied", checksum=desired.checksum[:12], node=node.metadata.name)
        await asyncio.to_thread(release_memory)
        return await self._rest()

    def _next_look(self) -> timedelta:
        return LOOK_AGAIN * 6 if self._with.jobs.watched else self._with.sync_period

    async def _needs_repair(self, secret: Secret, node: Node | None) -> bool:
        """Look after what may have changed behind our back since the OSC was applied."""
        await self._with.jobs.look_at_watched()
        await asyncio.to_thread(self._remove_bootstrap_credentials)
        last = (await asyncio.to_thread(self._with.journal.load_last_applied)).decoded
        config = last.config if last is not None else (await self._read(secret)).decoded.config
        await self._label(node, config)
        return await self._secrets_changed(secret) or (last is not None and await self._drifted(config))

    async def _rest(self) -> Result:
        """Nothing is to be done until the sync period has gone by."""
        await self._with.status.failing({}, next_try=None)
        await self._with.status.phase("applied")
        return Result(requeue_after=self._next_look())

    async def _secrets_changed(self, secret: Secret) -> bool:
        pending = self._with.journal.load().pending
        if pending is None or not pending.secret_digests:
            return False
        desired = await self._read(secret)
        referenced = [file for file in desired.effective.files if file.content.secret_ref is not None]
        now = _secret_digests(referenced, await self._contents.resolve(referenced))
        changed = changed_secrets(desired.effective, pending.secret_digests, now)
        if changed:
            log.info("Content of referenced Secrets changed", paths=sorted(changed))
        self._dirty = Dirty(self._dirty.paths | changed, self._dirty.units)
        return bool(changed)

    async def _drifted(self, config: OperatingSystemConfig) -> bool:
        """Look for files that somebody changed by hand; those that would restart a unit are left alone (W14)."""
        applied = effective(config, hostname=self._with.identity.hostname)
        used = {path for unit in applied.units for path in unit.file_paths}
        findings = await asyncio.to_thread(
            lambda: list(inspect(Effective(files=applied.files), loaded_units=None, root=self._with.paths.root))
        )
        drifted = [finding for finding in findings if finding.path and finding.path not in used]
        for finding in drifted:
            log.info("File was changed by somebody else, repairing", path=finding.path, reason=finding.reason)
        self.repair(drifted)
        return bool(drifted)

    def _remove_bootstrap_credentials(self) -> None:
        """Once the kubelet has credentials of its own, those for bootstrapping go (W29)."""
        paths = self._with.paths
        if paths.kubelet_kubeconfig.exists() and paths.kubelet_client_certificate.exists():
            for path in (paths.kubelet_bootstrap_kubeconfig, paths.bootstrap_token):
                if core_files.remove(path):
                    log.info("Bootstrap credentials removed", path=str(path))

    def _event(self, node: Node | None, event_type: EventType, reason: str, action: str, note: str) -> None:
        if node is not None:
            self._with.recorder.event(
                reference(node), event_type=event_type, reason=reason, action=action, note=note, controller=CONTROLLER
            )


def _secret_digests(files: Iterable[File], contents: Mapping[str, bytes | AgentError]) -> dict[str, str]:
    return {
        file.path: digest(content)
        for file in files
        if file.content.secret_ref is not None and isinstance(content := contents[file.path], bytes)
    }


def _compare_with_disk(wanted: Effective, dirty: Dirty, root: Path) -> Dirty:
    """Find what differs on the disk, for when the journal cannot tell (contract 6.4 d)."""
    findings = list(inspect(wanted, loaded_units=None, root=root))
    log.error("State files are damaged, compared with the disk", findings=len(findings))
    return Dirty(
        dirty.paths | {finding.path for finding in findings if finding.path},
        dirty.units | {finding.unit for finding in findings if finding.unit},
    )
