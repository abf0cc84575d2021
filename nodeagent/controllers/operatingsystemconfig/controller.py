"""Reconcile the OSC Secret: decide what is left to do, have it done, and say so on the Node.

Nothing on the machine changes before the OSC was decoded and validated and the journal is on the disk. Source: gardener
pkg/nodeagent/controller/operatingsystemconfig/reconciler.go (contract 6.2 to 6.10).
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta

from agents.core import files as core_files
from agents.core.clock import Clock
from agents.core.errors import AgentError, RetriableError
from agents.core.logging import get_logger
from agents.core.shutdown import Shutdown
from agents.core.threads import run_to_end
from agents.kube.client import Client
from agents.kube.events import EventRecorder
from agents.kube.models import NODES, Node, Secret
from agents.kube.patch import merge
from agents.runtime.cache import Informer
from agents.runtime.reconcile import Request, Result
from nodeagent.config import full_version
from nodeagent.controllers.operatingsystemconfig import desired as desired_module
from nodeagent.controllers.operatingsystemconfig import node_metadata, staticpods
from nodeagent.controllers.operatingsystemconfig.apply import Applier
from nodeagent.controllers.operatingsystemconfig.apply_pass import Outcome
from nodeagent.controllers.operatingsystemconfig.containerd import ContainerdFiles
from nodeagent.controllers.operatingsystemconfig.desired import Desired
from nodeagent.controllers.operatingsystemconfig.drift import Drift
from nodeagent.controllers.operatingsystemconfig.files import Contents
from nodeagent.controllers.operatingsystemconfig.inplace import (
    BUDGET,
    InPlaceUpdate,
    Progress,
    RolledBack,
    UpdateFailed,
    UpdateGivenUp,
    WaitingForReboot,
    may_begin,
)
from nodeagent.controllers.operatingsystemconfig.preparation import Preparation, Prepared
from nodeagent.controllers.operatingsystemconfig.reporter import ApplyFailed, Reporter
from nodeagent.controllers.operatingsystemconfig.serial import SerialLock
from nodeagent.controllers.operatingsystemconfig.trigger import is_serial
from nodeagent.controllers.operatingsystemconfig.units import LOOK_AGAIN, UnitJobs
from nodeagent.controllers.operatingsystemconfig.upkeep import Upkeep
from nodeagent.host.consistency import Finding
from nodeagent.host.node_identity import NodeIdentity
from nodeagent.host.originals import Originals
from nodeagent.paths import Paths
from nodeagent.status import StatusBoard
from osc.codec import Decoded
from osc.containerd import CONFIG_FILE, hosts_file
from osc.diff import finished
from osc.errors import InvalidOSC
from osc.inplace import InPlaceChanges
from osc.journal import Journal
from osc.merge import Effective, effective
from osc.plan import plan
from osc.types import OperatingSystemConfig

log = get_logger(__name__)

APPLY_SECONDS = 300.0
"""Longest pass over files and units: a pull that is given up, and what was waiting for it. An update in place has a time of its own (W19)."""
DEADLINE = timedelta(seconds=APPLY_SECONDS) + BUDGET + timedelta(minutes=2)
"""Longest pass as a whole: what lies before, between and after the two is calls to an API server that may be slow."""
NOT_KEPT = (
    "it is not known to be on this machine to its end, so that what drifts is put right only with the update that waits"
)
"""Why the OSC before one that waits for a drain is not kept up."""


class NodeUnknown(RetriableError):
    """The name of our Node is known, the object is not in the cache."""


_SAID = (InvalidOSC, ApplyFailed, UpdateFailed, UpdateGivenUp, RolledBack, WaitingForReboot)
"""Errors that are reported where they come about."""


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
    originals: Originals
    containerd: ContainerdFiles
    drift: Drift
    watch: Callable[[Collection[str]], None]
    """Told which files are ours now."""
    in_place: InPlaceUpdate
    lock: SerialLock
    status: StatusBoard
    shutdown: Shutdown
    clock: Clock
    paths: Paths
    search_path: str
    sync_period: timedelta
    kubernetes_version: str
    applied: Callable[[Outcome, float], None] = lambda _outcome, _seconds: None
    """Told what became of each plan, and how long that took."""
    release_memory: Callable[[], None] = lambda: None
    """Told when work has ended that took much memory."""


class OperatingSystemConfigReconciler:
    """One pass over the OSC Secret."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._with = dependencies
        contents = Contents(client=dependencies.client)
        self._preparation = Preparation(
            journal=dependencies.journal,
            contents=contents,
            originals=dependencies.originals,
            containerd=dependencies.containerd,
            in_place=dependencies.in_place,
            hostname=lambda: dependencies.identity.hostname,
            paths=dependencies.paths,
        )
        self._upkeep = Upkeep(
            preparation=self._preparation,
            journal=dependencies.journal,
            contents=contents,
            drift=dependencies.drift,
            jobs=dependencies.jobs,
            applier=dependencies.applier,
            sync_period=dependencies.sync_period,
            clock=dependencies.clock,
            paths=dependencies.paths,
        )
        self._reporter = Reporter(
            journal=dependencies.journal,
            recorder=dependencies.recorder,
            status=dependencies.status,
            jobs=dependencies.jobs,
            clock=dependencies.clock,
        )
        self._refused = ("", "")
        """Version of the Secret that was refused last, and why."""
        self._released = ""
        self._held = InPlaceChanges()
        """What was said last to be waiting for a drain."""
        self._settled = False

    def repair(self, findings: Collection[Finding]) -> None:
        """Have the next pass write these items again."""
        self._preparation.repair(findings)

    async def reconcile(self, request: Request) -> Result:
        """Bring the machine closer to the OSC."""
        secret = self._with.secrets.get(request)
        if secret is None:
            log.debug("Secret is gone")
            return Result()
        node = self._node()
        try:
            return await self._reconcile(secret, node)
        except _SAID:
            raise
        except AgentError as error:
            await self._reporter.stopped(error, node)
            raise

    async def _reconcile(self, secret: Secret, node: Node | None) -> Result:
        try:
            announced = desired_module.checksum(secret)
            if await self._is_applied(announced.value, node) and not await self._needs_repair(secret, node):
                await self._release(secret)
                self._reporter.accepted()
                self._let_go_of_the_start()
                return await self._rest(announced.value)
            if not announced.matches:
                log.error("Checksum annotation differs from the data, reporting the annotation")
            desired = await self._read(secret)
            due = await self._preparation.due_in_place(desired)
        except InvalidOSC as error:
            refused = (secret.metadata.resource_version, str(error))
            if self._refused == refused:
                return await self._go_on_without(secret, error, node)
            self._refused = refused
            await self._reporter.refused(error, node)
            error.after = LOOK_AGAIN if self._with.jobs.pending else self._with.sync_period
            raise
        self._reporter.accepted()
        if due and not _is_drained(node):
            return await self._wait_for_drain(secret, desired, due, node)
        if (wait := await self._wait_for_turn(secret, node)) is not None:
            return wait
        await self._label(node, desired.decoded.config)
        return await self._apply(secret, desired, node)

    async def _read(self, secret: Secret) -> Desired:
        return await asyncio.to_thread(
            desired_module.read,
            secret,
            hostname=self._with.identity.hostname,
            paths=self._with.paths,
            search_path=self._with.search_path,
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
        if node_metadata.applied_checksum(node) != checksum or self._preparation.dirty:
            return False
        if (await asyncio.to_thread(self._with.journal.load_last_applied)).doubtful:
            return False
        loaded = await asyncio.to_thread(self._with.journal.load)
        if loaded.compare_with_disk:
            return False
        pending = loaded.pending
        return pending is None or (pending.checksum == checksum and not pending.unfinished)

    async def _go_on_without(self, secret: Secret, refused: InvalidOSC, node: Node | None) -> Result:
        """Beside an OSC that is refused, the last one is kept up."""
        self._reporter.refuse(refused)
        self._reporter.news(node)
        await self._with.status.phase("failing")
        kept = await self._what_is_kept(node)
        if node is not None and kept is not None and (unfinished := await self._keep(secret, kept, node)) is not None:
            return unfinished
        await self._release_idle(secret)
        await self._reporter.failing({})
        return Result(requeue_after=self._with.sync_period)

    async def _wait_for_drain(self, secret: Secret, desired: Desired, due: InPlaceChanges, node: Node | None) -> Result:
        """Begin nothing of an update in place until the Node is said to be drained, which may take days; its event brings us back."""
        if node is None:
            return await self._reporter.no_node()
        await self._with.status.phase("waitingForDrain")
        await self._label(node, desired.decoded.config)
        kept = await self._what_is_kept(node)
        self._reporter.news(node)
        if kept is not None and (unfinished := await self._keep(secret, kept, node)) is not None:
            return unfinished
        return await self._hold(secret, due, unkept="" if kept is not None else NOT_KEPT)

    async def _what_is_kept(self, node: Node | None) -> Desired | None:
        """Return the OSC that was applied last; None if that is not what is on the machine, but for drift and its repair."""
        last = await asyncio.to_thread(self._with.journal.load_last_applied)
        loaded = await asyncio.to_thread(self._with.journal.load)
        known = loaded.pending or loaded.before
        superseded = loaded.compare_with_disk if known is None else known.superseding
        if last.decoded is None or last.doubtful or superseded:
            return None
        checksum = known.checksum if known is not None else node_metadata.applied_checksum(node)
        applied = self._applied(last.decoded)
        return Desired(checksum or "", last.decoded, applied)

    async def _keep(self, secret: Secret, kept: Desired, node: Node) -> Result | None:
        """Keep the machine as an OSC wants it, beside another one that is not begun.

        Returns:
            None if it is so, else how it goes on.

        Raises:
            AgentError: something failed; the lock of a serial pool is free then, unless units are being restarted.
        """
        loaded = await asyncio.to_thread(self._with.journal.load)
        if loaded.pending is not None and loaded.pending.unfinished:
            await self._upkeep.look_beside(kept.effective, loaded.pending.changes)
        elif not loaded.compare_with_disk:
            self._with.watch(kept.effective.written_paths())
            if not self._preparation.dirty:
                await self._upkeep.look(kept.effective)
            if not self._preparation.dirty:
                return None
        if (wait := await self._wait_for_turn(secret, node)) is not None:
            return wait
        try:
            prepared = await self._preparation.prepare(kept, kept=True)
            unfinished = None if prepared is None else await self._bring(kept, prepared, node)
            if prepared is not None and unfinished is None:
                await self._commit(kept)
        except AgentError:
            await self._release_idle(secret)
            raise
        await self._release_idle(secret)
        return unfinished

    async def _release_idle(self, secret: Secret) -> None:
        """Let others go first, unless units are being restarted: nobody knows when what failed can be repaired."""
        if not self._with.jobs.pending:
            await self._release(secret)

    async def _watch_the_rest(self, desired: Desired) -> None:
        pending = (await asyncio.to_thread(self._with.journal.load)).pending
        if pending is not None:
            self._with.watch(finished(desired.effective, pending.changes).written_paths())

    async def _wait_for_turn(self, secret: Secret, node: Node | None) -> Result | None:
        """In a pool that goes on node by node, wait for the lock; without a Node nobody could know us (W18)."""
        if not is_serial(secret) or node is None:
            self._with.lock.forget()
            return None
        wait = await self._with.lock.acquire(secret)
        if wait is not None:
            return await self._reporter.not_our_turn(wait)
        self._released = ""  # also for a repair, which has the version of the Secret that was applied
        return None

    async def _release(self, secret: Secret) -> None:
        if not is_serial(secret):
            self._with.lock.forget()
        elif secret.metadata.resource_version != self._released:
            await self._with.lock.release(secret)
            self._released = secret.metadata.resource_version

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

    async def _apply(self, secret: Secret, desired: Desired, node: Node | None) -> Result:
        begun = (await asyncio.to_thread(self._with.journal.load)).pending
        left = begun.changes if begun is not None and begun.checksum == desired.checksum else None
        # What drifts of an update that was begun and may not go on could be put right only after the drain.
        if left is not None and (_is_drained(node) or not left.in_place):
            await self._upkeep.look_beside(desired.effective, left)
        prepared = await self._preparation.prepare(desired)
        self._reporter.news(node)
        if prepared is None:
            self._with.in_place.rest()
            self._with.watch(desired.effective.written_paths())
            await self._drop_originals(desired)  # what ended after the commit may not have
            return await self._report(secret, desired, node)
        config, in_place = desired.decoded.config, prepared.changes.in_place
        if in_place:
            if node is None:
                return await self._reporter.no_node()
            in_place = await self._with.in_place.settle(config, in_place)
            if in_place and not may_begin(node):
                return await self._hold(secret, in_place, unkept=NOT_KEPT)
        if self._held:
            self._held = InPlaceChanges()
            await self._with.status.failing({}, next_try=None)
        self._with.status.note_phase("applying", checksum=desired.checksum)
        if (unfinished := await self._bring(desired, prepared, node)) is not None:
            return unfinished
        if node is not None:
            progress = await self._update_in_place(config, node, in_place)
            if progress.look_again is not None:
                return await self._reporter.look_again({"update in place": progress.waiting_for}, progress.look_again)
        await self._commit(desired)
        return await self._report(secret, desired, node)

    async def _bring(self, desired: Desired, prepared: Prepared, node: Node | None) -> Result | None:
        """Have files, units and the rest brought; returns None once all is there.

        Raises:
            ApplyFailed: something failed, which was told.
        """
        outcome = await self._carry_out(desired, prepared)
        if outcome.restart:
            await self._restart("own unit or one of its files changed")
            return Result()
        if outcome.failed or outcome.waiting:
            await self._watch_the_rest(desired)
        if outcome.failed:
            raise await self._reporter.failed(outcome, node) from next(iter(outcome.failed.values()))
        self._reporter.succeeded()
        if outcome.waiting:
            return await self._reporter.look_again({**outcome.waiting, **self._with.jobs.pending}, LOOK_AGAIN)
        return None

    async def _commit(self, desired: Desired) -> None:
        # Before it is said that the OSC is applied: from then on everybody may rely on it.
        self._with.watch(desired.effective.written_paths())
        await run_to_end(self._with.journal.commit, desired.decoded.document)
        await self._drop_originals(desired)

    async def _drop_originals(self, desired: Desired) -> None:
        """Forget what was at paths that are no longer ours: this OSC is applied to its end."""
        # containerd's configuration stays as it was made when an OSC no longer has any; only a reset puts it back.
        registries = map(hosts_file, desired.effective.registries_by_upstream())
        await run_to_end(self._with.originals.drop, but={*desired.effective.written_paths(), *registries, CONFIG_FILE})

    async def _carry_out(self, desired: Desired, prepared: Prepared) -> Outcome:
        steps = plan(prepared.changes, desired.effective)
        started = self._with.clock.monotonic()
        with self._with.jobs.handling(steps, checksum=desired.checksum):
            outcome = await self._with.applier.apply(steps, prepared.contents, seconds=APPLY_SECONDS)
        self._with.applied(outcome, self._with.clock.monotonic() - started)
        return outcome

    async def _restart(self, reason: str) -> None:
        await self._with.status.phase("restarting")
        self._with.shutdown.request(reason)

    async def _update_in_place(self, config: OperatingSystemConfig, node: Node, changes: InPlaceChanges) -> Progress:
        try:
            progress = await self._with.in_place.kubelet(node, changes)
            if progress.look_again is None:
                progress = await self._with.in_place.finish(config, node, changes)
        except (UpdateFailed, UpdateGivenUp, RolledBack) as error:
            await self._with.status.failing({"update in place": error}, next_try=None)
            await self._with.status.phase("failing")
            raise
        return progress

    async def _hold(self, secret: Secret, in_place: InPlaceChanges, *, unkept: str) -> Result:
        """Say that an update in place waits, without the lock of a serial pool: the node that is drained first may be another one."""
        self._with.in_place.rest()
        await self._release(secret)
        if self._held != in_place:
            log.info("Update in place is due, waiting until the node is drained", parts=list(in_place.names))
            self._held = in_place
        self._reporter.succeeded()
        return await self._reporter.not_drained(self._next_look(), unkept=unkept)

    async def _report(self, secret: Secret, desired: Desired, node: Node | None) -> Result:
        """Say on the Node that this OSC was applied; without a Node wait for it."""
        if node is None:
            return await self._reporter.no_node()
        await asyncio.to_thread(self._upkeep.remove_bootstrap_credentials)
        if missing := await staticpods.missing(self._with.client, node, desired.static_pods):
            return await self._reporter.look_again({"static pods": "; ".join(missing)}, LOOK_AGAIN)
        self._reporter.event(node, "Normal", "OSCApplied", "operating system config has been applied")
        version = full_version(self._with.kubernetes_version)
        await self._with.client.patch(
            NODES, node.metadata.name, merge(node_metadata.applied_patch(desired.checksum, version))
        )
        log.info("Operating system config applied", checksum=desired.checksum[:12], node=node.metadata.name)
        await self._release(secret)
        self._with.release_memory()
        return await self._rest(desired.checksum)

    def _next_look(self) -> timedelta:
        return LOOK_AGAIN * 6 if self._with.jobs.watched else self._with.sync_period

    async def _needs_repair(self, secret: Secret, node: Node | None) -> bool:
        """Look after what may have changed behind our back since the OSC was applied."""
        last = (await asyncio.to_thread(self._with.journal.load_last_applied)).decoded
        config = last.config if last is not None else (await self._read(secret)).decoded.config
        await self._label(node, config)
        await self._upkeep.look(self._applied(last) if last is not None else None)
        return bool(self._preparation.dirty)

    def _applied(self, last: Decoded) -> Effective:
        return effective(last.config, hostname=self._with.identity.hostname)

    def _let_go_of_the_start(self) -> None:
        if not self._settled:
            self._settled = True
            self._with.release_memory()

    async def _rest(self, checksum: str) -> Result:
        """Nothing is to be done until the sync period has gone by, or somebody touches what is ours."""
        last = (await asyncio.to_thread(self._with.journal.load_last_applied)).decoded
        self._with.watch(self._applied(last).written_paths() if last is not None else ())
        await self._with.status.failing({}, next_try=None)
        await self._with.status.phase("applied", checksum=checksum)
        return Result(requeue_after=self._next_look())


def _is_drained(node: Node | None) -> bool:
    """Tell whether an update in place may begin, or go on."""
    return node is not None and may_begin(node)
