"""From what is desired to what is left to do, on the disk before the first change to the machine.

Source: contract 6.3, 6.4; gardener pkg/nodeagent/controller/operatingsystemconfig/changes.go.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agents.core import files as core_files
from agents.core.errors import AgentError
from agents.core.logging import get_logger
from agents.core.threads import run_to_end
from nodeagent.controllers.operatingsystemconfig.containerd import ContainerdFiles
from nodeagent.controllers.operatingsystemconfig.desired import Desired
from nodeagent.controllers.operatingsystemconfig.files import Contents, digest
from nodeagent.controllers.operatingsystemconfig.inplace import InPlaceUpdate
from nodeagent.host.consistency import Finding, inspect
from nodeagent.host.originals import Originals
from nodeagent.paths import Paths
from osc import codec
from osc.codec import Decoded, dump_state
from osc.containerd import CONFIG_FILE, CONTAINERD_UNIT, hosts_file
from osc.diff import (
    Changes,
    Dirty,
    Entry,
    EntryKind,
    Touched,
    add_dirty,
    changed_secrets,
    diff,
    with_containerd_config,
)
from osc.inplace import KUBELET_CONFIG, InPlaceChanges, in_place_changes, with_kubelet_config
from osc.journal import Journal, LastApplied, Loaded
from osc.merge import Effective, effective
from osc.pending import Pending
from osc.types import OWN_UNIT, File, OperatingSystemConfig, Unit

log = get_logger(__name__)

_STATE_MODE = 0o600


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is left to do, and the bytes of files or why they cannot be had."""

    contents: Mapping[str, bytes | AgentError]
    changes: Changes


class Preparation:
    """Computes changes, and remembers what was seen to differ.

    Args:
        journal: what was begun and what was applied.
        contents: bytes of files.
        originals: keeps what was there before us.
        containerd: looks whether containerd's configuration is as it should be.
        in_place: knows the running operating system.
        hostname: ours.
        paths: where the machine's files are.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        contents: Contents,
        originals: Originals,
        containerd: ContainerdFiles,
        in_place: InPlaceUpdate,
        hostname: Callable[[], str],
        paths: Paths,
    ) -> None:
        self._journal = journal
        self._contents = contents
        self._originals = originals
        self._containerd = containerd
        self._in_place = in_place
        self._hostname = hostname
        self._paths = paths
        self._stated = ""
        self.dirty = Dirty()
        """What the next preparation counts as changed."""

    def repair(self, findings: Collection[Finding]) -> None:
        """Have the next pass write these items again."""
        self.count(dirty_of(findings))

    def count(self, dirty: Dirty) -> None:
        """Have the next preparation count these as changed."""
        self.dirty |= dirty

    async def prepare(self, desired: Desired, *, kept: bool = False) -> Prepared | None:
        """Compute what is left, and put it into the journal; nothing else on the disk has changed until then.

        Args:
            desired: the OSC.
            kept: it is the one that was applied last, beside another one that is not begun: nothing of it is an update in place.

        Returns:
            None if this very OSC was applied to its end already.
        """
        dirty, self.dirty = self.dirty, Dirty()
        try:
            return await self._prepare(desired, dirty, kept=kept)
        except BaseException:
            self.count(dirty)
            raise

    async def _prepare(self, desired: Desired, dirty: Dirty, *, kept: bool) -> Prepared | None:
        loaded = await asyncio.to_thread(self._journal.load)
        last = await asyncio.to_thread(self._journal.load_last_applied)
        touched = await asyncio.to_thread(self._touched, loaded, last)
        doubtful = loaded.compare_with_disk or last.doubtful
        if doubtful:
            dirty |= await asyncio.to_thread(self._compare_with_disk, desired.effective)
        before = loaded.secret_digests
        other_config = await self._containerd_differs(desired.effective)
        resumed = loaded.pending is not None and loaded.pending.checksum == desired.checksum
        if loaded.pending is not None and _goes_on(loaded.pending, desired, last):
            changes = resumed_changes(loaded.pending, desired.effective, dirty, other_config=other_config)
            if (
                not changes
                and not loaded.pending.touched  # a kill between the two writes of a commit: it is made again
                and not last.older
                and last.decoded is not None
                and last.decoded.document == desired.decoded.document
            ):
                return None  # nobody brings what is dirty, or it was put right meanwhile
            contents = await self._contents.resolve(changes.files_changed)
            now = secret_digests(changes.files_changed, contents)
        else:
            contents = await self._contents.resolve(desired.effective.files)
            now = secret_digests(desired.effective.files, contents)
            dirty |= Dirty(changed_secrets(desired.effective, before, now))
            dirty |= Dirty(await asyncio.to_thread(unknown_secrets, before, now, root=self._paths.root))
            due = InPlaceChanges() if kept else await self._due_in_place(desired, loaded, last, touched)
            old = effective(last.decoded.config, hostname=self._hostname()) if last.decoded else None
            changes = await asyncio.to_thread(
                diff,
                desired.effective,
                old=old,
                touched=touched,
                dirty=dirty,
                containerd_config=other_config,
                in_place=due,
            )
        if not doubtful:
            await self._keep_originals(changes, desired.effective, last.decoded, loaded.touched)
        known = _of_secrets(desired.effective, {**before, **now})
        applied = desired.checksum if kept else self._applied_before(desired, loaded, last)
        begin = partial(self._journal.begin, touched=touched, secret_digests=known, applied=applied)
        changes = await run_to_end(begin, desired.checksum, changes)
        document = await asyncio.to_thread(dump_state, desired.decoded.document)
        # For operators' commands and for a journal that is lost: atomic, but not worth two fsyncs.
        await run_to_end(core_files.write_atomic, self._paths.desired, document, mode=_STATE_MODE, sync=False)
        self._say(desired, changes, resumed=resumed)
        return Prepared(contents, changes)

    async def due_in_place(self, desired: Desired) -> InPlaceChanges:
        """Return which parts of an update in place this OSC asks for; none of one that was begun already, as then its journal says it."""
        if desired.decoded.config.spec.in_place_updates is None:
            return InPlaceChanges()
        loaded = await asyncio.to_thread(self._journal.load)
        last = await asyncio.to_thread(self._journal.load_last_applied)
        if loaded.pending is not None and _goes_on(loaded.pending, desired, last):
            return InPlaceChanges()
        touched = await asyncio.to_thread(self._touched, loaded, last)
        return await self._due_in_place(desired, loaded, last, touched)

    def _touched(self, loaded: Loaded, last: LastApplied) -> Touched:
        """Return what may differ from last-applied; blocking."""
        touched = loaded.touched
        if loaded.compare_with_disk or last.doubtful:
            touched |= self._touched_by_desired()
        if last.also is not None:
            touched |= Touched.of(effective(last.also.config, hostname=self._hostname()))
        return touched

    @staticmethod
    def _applied_before(desired: Desired, loaded: Loaded, last: LastApplied) -> str | None:
        """Return the checksum of what was applied last if the journal says a wrong one, empty as nobody knows it; None if it does not."""
        before = loaded.pending
        if before is None or not before.unfinished or before.applied != desired.checksum:
            return None
        # Another one was applied to its end and the process killed before the journal said so; and now this one is back.
        other = last.decoded is None or last.decoded.document != desired.decoded.document
        return "" if other else None

    async def _keep_originals(
        self, changes: Changes, wanted: Effective, last: Decoded | None, touched: Touched
    ) -> None:
        old = effective(last.config, hostname=self._hostname()) if last is not None else Effective()
        ours, hosts = _ours(old, touched), _foreign_registries(wanted, old, touched)
        await run_to_end(self._originals.keep, _foreign(changes, wanted, old) - ours, in_folders=hosts, ours=ours)

    async def _containerd_differs(self, wanted: Effective) -> bool:
        """Look at the real file (W16); if containerd cannot be asked, the step that would write it says why."""
        if wanted.runtime is None:
            return False
        try:
            return await self._containerd.differs(wanted.runtime)
        except AgentError as error:
            log.debug("Configuration of containerd not looked at", error=error)
            return True

    async def _due_in_place(
        self, desired: Desired, loaded: Loaded, last: LastApplied, touched: Touched
    ) -> InPlaceChanges:
        known = last.also if last.doubtful else last.decoded
        if desired.decoded.config.spec.in_place_updates is None or known is None:
            return InPlaceChanges()
        if last.doubtful and was_applied(desired, loaded.pending, known):
            return InPlaceChanges()  # nobody would drain the node for it
        version = await self._in_place.operating_system_version()
        before = await asyncio.to_thread(with_real_kubelet_config, known.config, touched, root=self._paths.root)
        return in_place_changes(desired.decoded.config, before, version)

    def _touched_by_desired(self) -> Touched:
        """Return what the OSC that was asked for last may have touched, for when the journal that knew is lost."""
        try:
            content = core_files.read_optional(self._paths.desired)
            if content is None:
                return Touched()
            return Touched.of(effective(codec.decode(content).config, hostname=self._hostname()))
        except AgentError as error:
            log.error("Desired operating system config unreadable", error=error)
            return Touched()

    def _compare_with_disk(self, wanted: Effective) -> Dirty:
        """Find what differs on the disk, for when the journal cannot tell (contract 6.4 d)."""
        findings = list(inspect(wanted, loaded_units=None, root=self._paths.root))
        log.error("State files are damaged, compared with the disk", findings=len(findings))
        return dirty_of(findings)

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
            registries=len(changes.registries_desired) + len(changes.registries_deleted),
            **({"inPlace": list(changes.in_place.names)} if changes.in_place else {}),
        )


def _goes_on(pending: Pending, desired: Desired, last: LastApplied) -> bool:
    """Tell whether this OSC was begun; a journal that ended is only worth something beside what it ended with."""
    return pending.checksum == desired.checksum and (pending.unfinished or last.decoded is not None)


def was_applied(desired: Desired, pending: Pending | None, known: Decoded) -> bool:
    """Tell whether an OSC was applied to its end, where last-applied is damaged.

    Args:
        desired: the OSC.
        pending: the journal.
        known: what was applied last as far as the generations before tell.
    """
    ended = pending is not None and not pending.unfinished and pending.checksum == desired.checksum
    return ended or known.document == desired.decoded.document


def resumed_changes(pending: Pending, wanted: Effective, dirty: Dirty, *, other_config: bool) -> Changes:
    """Return what is left of an apply that is gone on with.

    Args:
        pending: the journal.
        wanted: what is desired.
        dirty: what was seen to differ meanwhile.
        other_config: whether containerd's configuration is not as it should be. Where this apply has written it already, that is drift:
            the look for drift decides about it, within its limits.
    """
    changes = pending.changes
    due = changes.containerd_config or pending.foreign or CONFIG_FILE in dirty.paths
    if wanted.runtime is None:
        # The Go agent asks for this on every first run; without settings there is nothing to write.
        changes = changes.without((Entry(EntryKind.CONTAINERD_CONFIG),))
    # Whether containerd is restarted for what is left from before was decided when that began.
    decided = changes.containerd_config and CONFIG_FILE not in dirty.paths
    restart = not decided and (CONTAINERD_UNIT, CONFIG_FILE) not in dirty.still
    return with_containerd_config(add_dirty(changes, wanted, dirty), changed=other_config and due, restart=restart)


def with_real_kubelet_config(config: OperatingSystemConfig, touched: Touched, *, root: Path) -> OperatingSystemConfig:
    """Return the OSC that was applied last with the configuration that the kubelet has; blocking.

    They differ where an apply that never ended brought another one, with which the kubelet may have run (W10).
    """
    if KUBELET_CONFIG not in touched.paths:
        return config
    try:
        real = core_files.read_optional(root / KUBELET_CONFIG.lstrip("/"))
    except core_files.FileError as error:
        log.debug("Kubelet's configuration not read", error=error)
        real = None
    return config if real is None else with_kubelet_config(config, real)


def _foreign(changes: Changes, wanted: Effective, old: Effective) -> frozenset[str]:
    """Return the paths that we are about to write for the first time, but for those that user data brings for us."""
    own = wanted.units_by_name().get(OWN_UNIT, Unit(name=OWN_UNIT))
    paths = {file.path for file in changes.files_changed}
    paths.update(*(change.unit.written_paths() for change in changes.units_changed))
    return frozenset(paths - old.written_paths() - {own.path, *own.file_paths})


def _ours(old: Effective, touched: Touched) -> frozenset[str]:
    """Return the paths of what OSCs have brought; a registry's file may be where the next one has a file of its own, and the reverse."""
    registries = old.registries_by_upstream().keys() | touched.registries
    return old.written_paths() | touched.all_paths() | frozenset(map(hosts_file, registries))


def dirty_of(findings: Iterable[Finding]) -> Dirty:
    """Return what has to be written again for these findings."""
    found = tuple(findings)
    return Dirty(
        frozenset(finding.path for finding in found if finding.path),
        frozenset(finding.unit for finding in found if finding.unit),
        frozenset(finding.registry for finding in found if finding.registry),
    )


def secret_digests(files: Iterable[File], contents: Mapping[str, bytes | AgentError]) -> dict[str, str]:
    """Return the digests of contents that came from Secrets, by path."""
    return {
        file.path: digest(content)
        for file in files
        if file.content.secret_ref is not None and isinstance(content := contents.get(file.path), bytes)
    }


def _of_secrets(wanted: Effective, digests: Mapping[str, str]) -> dict[str, str]:
    """Return those of files that are wanted out of Secrets; a path that left would be remembered for ever."""
    paths = {file.path for file in wanted.secret_files()}
    return {path: known for path, known in digests.items() if path in paths}


def unknown_secrets(before: Mapping[str, str], now: Mapping[str, str], *, root: Path) -> frozenset[str]:
    """Return paths of secretRef files of which it is not known what was written, and that hold something else now; blocking.

    So it is after another node agent, which notes no digests, and after a damaged journal.

    Args:
        before: digest by path, from the journal.
        now: digest by path of what the Secrets hold.
        root: where the machine's files are.
    """
    return frozenset(
        path
        for path, wanted in now.items()
        if path not in before and _digest_on_disk(root / path.lstrip("/")) != wanted
    )


def _digest_on_disk(path: Path) -> str | None:
    try:
        content = core_files.read_optional(path)
    except core_files.FileError as error:
        log.debug("File not compared", path=str(path), error=error)
        return None
    return None if content is None else digest(content)


def _foreign_registries(wanted: Effective, old: Effective, touched: Touched) -> frozenset[str]:
    """Return the `hosts.toml` files that we are about to write for the first time."""
    ours = old.registries_by_upstream().keys() | touched.registries
    return frozenset(hosts_file(upstream) for upstream in wanted.registries_by_upstream() if upstream not in ours)
