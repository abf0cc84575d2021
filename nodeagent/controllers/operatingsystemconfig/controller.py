"""Reconcile the OSC Secret: decide what is left to do, have it done, and say so on the Node.

Nothing on the machine changes before the OSC was decoded and validated and the journal is on the disk. Source: gardener
pkg/nodeagent/controller/operatingsystemconfig/reconciler.go (contract 6.2 to 6.10).
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta

from agents.core import files as core_files
from agents.core.clock import Clock
from agents.core.errors import AgentError, RetriableError
from agents.core.logging import get_logger
from agents.core.shutdown import Shutdown
from agents.core.threads import run_to_end
from agents.kube.client import Client
from agents.kube.errors import ApiError
from agents.kube.events import EventRecorder, EventType
from agents.kube.models import NODES, Node, Secret
from agents.kube.patch import merge
from agents.runtime.cache import Informer
from agents.runtime.reconcile import Request, Result
from nodeagent.config import full_version
from nodeagent.controllers.operatingsystemconfig import desired as desired_module
from nodeagent.controllers.operatingsystemconfig import node_metadata, staticpods, summary
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
from nodeagent.controllers.operatingsystemconfig.serial import SerialLock
from nodeagent.controllers.operatingsystemconfig.trigger import is_serial
from nodeagent.controllers.operatingsystemconfig.units import LOOK_AGAIN, UnitJobs
from nodeagent.controllers.operatingsystemconfig.upkeep import Upkeep
from nodeagent.host.consistency import Finding
from nodeagent.host.node_events import reference
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

CONTROLLER = "operatingsystemconfig"
WAIT_FOR_NODE = timedelta(seconds=5)
FIRST_RETRY = timedelta(milliseconds=5)
LONGEST_RETRY = timedelta(seconds=1000)
APPLY_SECONDS = 300.0
"""Longest pass over files and units: a pull that is given up, and what was waiting for it. An update in place has a time of its own (W19)."""
DEADLINE = timedelta(seconds=APPLY_SECONDS) + BUDGET + timedelta(minutes=2)
"""Longest pass as a whole: what lies before, between and after the two is calls to an API server that may be slow."""


class NodeUnknown(RetriableError):
    """The name of our Node is known, the object is not in the cache."""


class ApplyFailed(RetriableError):
    """Some items of the OSC could not be applied; all others were."""


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
            journal=dependencies.journal,
            contents=contents,
            paths=dependencies.paths,
        )
        self._failures = 0
        self._refused = ("", "")
        """Version of the Secret that was refused last, and why."""
        self._released = ""
        self._settled = False
        self._looked_at = dependencies.clock.monotonic()

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
            await self._say(error, node)
            raise

    async def _reconcile(self, secret: Secret, node: Node | None) -> Result:
        try:
            announced = desired_module.checksum(secret)
            if await self._is_applied(announced.value, node) and not await self._needs_repair(secret, node):
                await self._release(secret)
                self._let_go_of_the_start()
                return await self._rest(announced.value)
            if not announced.matches:
                log.error("Checksum annotation differs from the data, reporting the annotation")
            desired = await self._read(secret)
        except InvalidOSC as error:
            refused = (secret.metadata.resource_version, str(error))
            if self._refused == refused:
                return await self._go_on_without(secret, node, error)
            self._refused = refused
            await self._refuse(error, node)
            error.after = self._with.sync_period
            raise
        if (wait := await self._wait_for_turn(secret, node)) is not None:
            return Result(requeue_after=wait)
        await self._label(node, desired.decoded.config)
        if due := await self._preparation.due_in_place(desired):
            if node is None:
                return Result(requeue_after=WAIT_FOR_NODE)
            if not may_begin(node):
                kept = await self._keep_applied(secret, node)
                await self._preparation.note_desired(desired)
                waiting = await self._wait_for_drain(secret, due)
                return kept or waiting
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

    async def _go_on_without(self, secret: Secret, node: Node | None, refused: InvalidOSC) -> Result:
        if (kept := await self._keep_applied(secret, node)) is None:
            return Result(requeue_after=self._with.sync_period)
        await self._with.status.failing({"operating system config": refused}, next_try=None)
        await self._with.status.phase("failing")
        return kept

    async def _keep_applied(self, secret: Secret, node: Node | None) -> Result | None:
        """Beside an OSC that is not begun: keep the machine as the last one that was applied wants it.

        Returns:
            None if there was nothing to do, or it cannot be told.
        """
        last = await asyncio.to_thread(self._with.journal.load_last_applied)
        loaded = await asyncio.to_thread(self._with.journal.load)
        unfinished = loaded.compare_with_disk or (loaded.pending is not None and loaded.pending.unfinished)
        if node is None or last.decoded is None or last.doubtful or unfinished:
            return None
        applied = self._applied(last.decoded)
        checksum = loaded.pending.checksum if loaded.pending is not None else node_metadata.applied_checksum(node)
        kept = Desired(checksum or "", last.decoded, applied, staticpods.desired(applied))
        self._with.watch(applied.written_paths())
        await self._look_after(applied)
        if not self._preparation.dirty:
            return None
        if (wait := await self._wait_for_turn(secret, node)) is not None:
            return Result(requeue_after=wait)
        return await self._apply(secret, kept, node)

    async def _look_beside(self, desired: Desired) -> None:
        """While this OSC does not count as applied: see what drifted of what it has brought, as often as of one that does."""
        pending = (await asyncio.to_thread(self._with.journal.load)).pending
        if pending is None or pending.checksum != desired.checksum:
            return
        self._preparation.dirty |= await self._with.drift.reconsider(desired.effective, pending.changes)
        waited = self._with.clock.monotonic() - self._looked_at
        if self._with.drift.suspecting or waited >= self._with.sync_period.total_seconds():
            coming = pending.changes.touched().all_paths()
            await self._look(finished(desired.effective, pending.changes), coming=coming)

    async def _look(self, wanted: Effective, *, coming: Collection[str] = ()) -> None:
        """Have put right what drifted of these."""
        everything, began = not self._with.drift.suspecting, self._with.clock.monotonic()
        self._preparation.dirty |= await self._with.drift.look(wanted, coming=coming)
        if everything:
            self._looked_at = began

    async def _watch_the_rest(self, desired: Desired) -> None:
        pending = (await asyncio.to_thread(self._with.journal.load)).pending
        if pending is not None:
            self._with.watch(finished(desired.effective, pending.changes).written_paths())

    async def _wait_for_turn(self, secret: Secret, node: Node | None) -> timedelta | None:
        """In a pool that goes on node by node, wait for the lock; without a Node nobody could know us (W18)."""
        if not is_serial(secret) or node is None:
            self._with.lock.forget()
            return None
        wait = await self._with.lock.acquire(secret)
        if wait is None:
            self._released = ""  # also for a repair, which has the version of the Secret that was applied
        else:
            await self._with.status.failing({}, next_try=self._with.clock.now() + wait)
            await self._with.status.phase("waitingForTurn")
        return wait

    async def _release(self, secret: Secret) -> None:
        if is_serial(secret) and secret.metadata.resource_version != self._released:
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
        await self._look_beside(desired)
        prepared = await self._preparation.prepare(desired)
        for note in self._with.journal.take_news() if node is not None else ():
            self._event(node, "Warning", "StateDamaged", "Reconcile", note)
        if prepared is None:
            self._with.in_place.rest()
            self._with.watch(desired.effective.written_paths())
            await self._drop_originals(desired)  # what ended after the commit may not have
            return await self._report(secret, desired, node)
        config, in_place = desired.decoded.config, prepared.changes.in_place
        if in_place:
            if node is None:
                return Result(requeue_after=WAIT_FOR_NODE)
            in_place = await self._with.in_place.settle(config, in_place)
            if in_place and not may_begin(node):
                return await self._wait_for_drain(secret, in_place)
        self._with.status.note_phase("applying", checksum=desired.checksum)
        outcome = await self._carry_out(desired, prepared)
        if outcome.restart:
            await self._restart("own unit or one of its files changed")
            return Result()
        if outcome.failed or outcome.waiting:
            await self._watch_the_rest(desired)
        if outcome.failed:
            raise await self._failed(outcome, node) from next(iter(outcome.failed.values()))
        self._failures = 0
        if outcome.waiting:
            return await self._look_again({**outcome.waiting, **self._with.jobs.pending}, LOOK_AGAIN)
        if node is not None:
            progress = await self._update_in_place(config, node, in_place)
            if progress.look_again is not None:
                return await self._look_again({"update in place": progress.waiting_for}, progress.look_again)
        # Before it is said that the OSC is applied: from then on everybody may rely on it.
        self._with.watch(desired.effective.written_paths())
        await run_to_end(self._with.journal.commit, desired.decoded.document)
        await self._drop_originals(desired)
        return await self._report(secret, desired, node)

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

    async def _wait_for_drain(self, secret: Secret, in_place: InPlaceChanges) -> Result:
        """Change nothing for it until the Node is said to be drained; its event brings us back, and the look for drift.

        Without the lock of a serial pool: the node that is drained first may be another one.
        """
        self._with.in_place.rest()
        await self._release(secret)
        log.info("Update in place is due, waiting until the node is drained", parts=list(in_place.names))
        await self._with.status.failing({}, next_try=None)
        await self._with.status.phase("waitingForDrain")
        return Result(requeue_after=self._next_look())

    async def _look_again(self, waiting: Mapping[str, str], after: timedelta) -> Result:
        await self._with.status.failing(waiting, next_try=self._with.clock.now() + after)
        return Result(requeue_after=after)

    async def _say(self, error: AgentError, node: Node | None) -> None:
        """Report what stopped a pass as a whole; while the API server is away an event would not reach it either."""
        await self._with.status.failing({"operating system config": error}, next_try=None)
        await self._with.status.phase("failing")
        if not isinstance(error, ApiError):
            self._event(node, "Warning", "OSCFailed", "Reconcile", f"the operating system config: {error}")

    async def _failed(self, outcome: Outcome, node: Node | None) -> ApplyFailed:
        """Report what failed. The workqueue's back-off decides on the retry; what has only not ended is looked at sooner."""
        backoff = min(FIRST_RETRY * 2 ** min(self._failures, 20), LONGEST_RETRY)
        self._failures += 1
        waiting = {name: cause for name, cause in outcome.waiting.items() if cause}
        look = LOOK_AGAIN if (self._with.jobs.pending or waiting) and backoff > LOOK_AGAIN else None
        causes: dict[str, AgentError | str] = {**waiting, **self._with.jobs.pending, **outcome.failed}
        for note in summary.notes({name: str(error) for name, error in outcome.failed.items()}):
            self._event(node, "Warning", "OSCFailed", "Reconcile", note)
        await self._with.status.failing(causes, next_try=self._with.clock.now() + (look or backoff))
        await self._with.status.phase("failing")
        return ApplyFailed(
            "items could not be applied", after=look, items=sorted(outcome.failed), waiting=len(outcome.waiting)
        )

    async def _report(self, secret: Secret, desired: Desired, node: Node | None) -> Result:
        """Say on the Node that this OSC was applied; without a Node wait for it."""
        if node is None:
            await self._with.status.failing({}, next_try=None)
            await self._with.status.phase("waitingForNode")
            return Result(requeue_after=WAIT_FOR_NODE)
        await asyncio.to_thread(self._upkeep.remove_bootstrap_credentials)
        if missing := await staticpods.missing(self._with.client, node, desired.static_pods):
            return await self._look_again({"static pods": "; ".join(missing)}, LOOK_AGAIN)
        self._event(node, "Normal", "OSCApplied", "Reconcile", "operating system config has been applied")
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
        await self._look_after(self._applied(last) if last is not None else None)
        return bool(self._preparation.dirty)

    async def _look_after(self, applied: Effective | None) -> None:
        """Find out what drifted, and which Secrets hold something else."""
        await self._with.jobs.look_at_watched()
        await self._with.applier.tidy()
        await asyncio.to_thread(self._upkeep.remove_bootstrap_credentials)
        if applied is None:
            return
        if not self._with.drift.suspecting and applied.secret_files():
            self._preparation.dirty |= await self._upkeep.changed_secrets(applied)
        await self._look(applied)

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

    def _event(self, node: Node | None, event_type: EventType, reason: str, action: str, note: str) -> None:
        if node is not None:
            self._with.recorder.event(
                reference(node), event_type=event_type, reason=reason, action=action, note=note, controller=CONTROLLER
            )
