"""What is left of an apply, and what the last finished one was; the only part of this room that touches the disk.

Order is what makes a kill harmless, not exactness: the file is on the disk (fsynced) before the first change to the
machine, and an entry leaves it only after its step is done. In between it may lag behind, because steps are repeatable:
it is replaced at most every 100 ms or 32 steps, atomically but without fsync (contract 6.4 a). A file that a power cut
tears is recognised by its digest and counts as none; the caller then compares with the disk (6.4 d), and knows what may differ on it
from the generation before: the file as it was when it was fsynced last, held under a second name.

At the end last-applied is written first and the emptied journal second. A kill between the two leaves an empty list of
work for a checksum that is already last-applied: the next start has nothing to do and commits again.

Last-applied is kept with a digest and its generation before (`agents.core.generations`), so that a damaged one, or an older one that
somebody brought back, is recognised. What it then may lack is `also`: the newest that is known to have been applied.

Not safe for threads: one owner calls it, from one thread at a time. Every method may block on the disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from agents.core.aside import set_aside
from agents.core.clock import Clock
from agents.core.errors import FatalError, TerminalError
from agents.core.files import FileError, read_optional, write_atomic
from agents.core.generations import Keeper, Origin, Writer
from agents.core.logging import get_logger
from osc.codec import Decoded, decode_document, dump_state, load_state
from osc.diff import Changes, Entry, EntryKind, OwnRestart, Touched
from osc.pending import Pending, TornPending, decode_pending, encode_pending
from osc.plan import RemoveFile, RemoveUnit, Step, WriteFile, WriteUnit
from osc.types import API_VERSION, KIND, UNIT_DIRECTORY

log = get_logger(__name__)

STATE_MODE = 0o600
_INTERVAL_SECONDS = 0.1
_MOST_STEPS = 32
_RELOAD = Entry(EntryKind.RELOAD)


class Reader(Protocol):
    """`agents.core.files.read_optional`, or something around it."""

    def __call__(self, path: Path) -> bytes | None:
        """Return the content, None if the file does not exist."""
        ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """The pending apply, if there is one.

    Attributes:
        pending: what is left; None if there is nothing, or it is not known.
        compare_with_disk: what was touched is not known (the file was damaged or lost, or another node agent left work in
            it), so last-applied alone does not tell what is on the machine.
        before: of a damaged or lost file: what the generation before it said.
    """

    pending: Pending | None
    compare_with_disk: bool
    before: Pending | None = None

    @property
    def touched(self) -> Touched:
        """What is known to differ from last-applied perhaps."""
        known = self.pending or self.before
        return known.touched if known is not None else Touched()

    @property
    def secret_digests(self) -> Mapping[str, str]:
        """By path, of the secretRef contents that were written last; empty if that is not known."""
        return self.pending.secret_digests if self.pending is not None else {}


@dataclass(frozen=True, slots=True)
class LastApplied:
    """The last OSC that was applied to its end.

    Attributes:
        decoded: what the file says; None if there is none or it cannot be read.
        torn: there was a file, and it cannot be read, or is gone.
        older: the file is an older one that was brought back.
        also: of a torn or an older one: what was applied last as far as we know.
    """

    decoded: Decoded | None
    torn: bool
    older: bool = False
    also: Decoded | None = None

    @property
    def doubtful(self) -> bool:
        """Whether it does not tell what is on the machine."""
        return self.torn or self.older


class Journal:
    """Pending changes and last-applied on the disk.

    Args:
        pending_path: `last-computed-osc-changes.yaml`.
        last_applied_path: `last-applied-osc.yaml`.
        generations: keeps last-applied, and holds the pending changes.
        clock: for the rate of rewrites.
        write: how files are replaced.
        read: how files are read.
    """

    def __init__(
        self,
        *,
        pending_path: Path,
        last_applied_path: Path,
        generations: Keeper,
        clock: Clock,
        write: Writer = write_atomic,
        read: Reader = read_optional,
    ) -> None:
        self._pending_path = pending_path
        self._last_applied_path = last_applied_path
        self._generations = generations
        self._clock = clock
        self._write = write
        self._read = read
        self._loaded: Loaded | None = None
        self._news: list[str] = []
        self._torn = self._older = self._looked = False
        self._also: Decoded | None = None
        self._current: Pending | None = None
        self._finished: set[Entry] = set()
        self._parts: dict[Entry, set[str]] = {}
        self._unwritten_steps = 0
        self._unwritten = False
        self._written_at = clock.monotonic()

    def load(self) -> Loaded:
        """Return the pending apply: of the file at the first call, from then on as this object left it."""
        return replace(self._read_once(), pending=self.pending)

    @property
    def pending(self) -> Pending | None:
        """The apply that was begun or loaded, with what is left of it now."""
        self._read_once()
        if self._current is None:
            return None
        return replace(self._current, changes=self._current.changes.without(self._finished))

    def load_last_applied(self) -> LastApplied:
        """Read the last OSC that was applied to its end."""
        path = self._last_applied_path
        try:
            content = self._read(path)
            if content is None:
                self._notice_loss(path)
                return LastApplied(None, torn=self._torn, also=self._also)
            decoded = decode_document(load_state(content))
        except (FileError, TerminalError) as error:
            log.error("Last applied operating system config unreadable", path=str(path), error=error)
            self._torn, self._older, self._also = True, False, self._newest_kept()
            self._set_aside(path)
            return LastApplied(None, torn=True, also=self._also)
        if not self._looked:
            self._looked = True
            if self._generations.origin(path, content) is Origin.OLDER:
                log.error("An older last applied operating system config was brought back", path=str(path))
                self._news.append(
                    f"{path} is an older one that was brought back; everything is compared with the machine"
                )
                self._older, self._also = True, self._newest_kept()
        return LastApplied(decoded, torn=False, older=self._older, also=self._also if self._older else None)

    def begin(
        self,
        checksum: str,
        changes: Changes,
        *,
        touched: Touched | None = None,
        secret_digests: Mapping[str, str] | None = None,
        applied: str | None = None,
    ) -> Changes:
        """Record what is to be done, before the first change to the machine.

        Also for an apply that goes on with more changes than it began with. What earlier, unfinished applies touched
        stays recorded, and a restart of the agent that one of them owes is owed by this one.

        Args:
            checksum: of the OSC.
            changes: all that is to be done for it.
            touched: more that may differ from last-applied, where the caller knows better than the file did.
            secret_digests: by path, of the secretRef contents; None keeps those recorded before.
            applied: checksum of the OSC that was applied last, where the caller knows more than the journal; empty if nobody knows.

        Returns:
            The changes to be carried out.

        Raises:
            FileError: it is not on the disk, nothing may be changed.
        """
        before = self.pending
        known = before or Pending(checksum)
        if applied is None and before is not None:
            applied = before.applied if before.unfinished else before.checksum
        if known.changes.own_restart is OwnRestart.REQUIRED:
            changes = replace(changes, own_restart=OwnRestart.REQUIRED)
        self._current = Pending(
            checksum,
            changes,
            touched=known.touched | (touched or Touched()) | changes.touched(),
            secret_digests=known.secret_digests if secret_digests is None else dict(secret_digests),
            sequence=known.sequence,
            applied=applied or "",
        )
        self._loaded = Loaded(None, compare_with_disk=False)
        self._finished.clear()
        self._parts.clear()
        self._save(sync=True)
        return changes

    def done(self, *steps: Step) -> None:
        """Record that these steps succeeded. Written to the file now or with one of the next calls.

        Raises:
            FileError: the file could not be replaced; the steps are recorded in memory all the same.
        """
        for step in steps:
            self._finish(step)
        self._unwritten = True
        self._unwritten_steps += len(steps)
        waited = self._clock.monotonic() - self._written_at
        if self._unwritten_steps >= _MOST_STEPS or waited >= _INTERVAL_SECONDS:
            self._save(sync=False)

    def finish(self, *entries: Entry) -> None:
        """Record that entries without steps of a plan are done, and write the file at once."""
        self._begun()
        self._finished.update(entries)
        self._save(sync=True)

    def own_bytes_changed(self) -> None:
        """Record that a step changed bytes of the agent's own unit or its files: the restart is required."""
        current = self._begun()
        if current.changes.own_restart is OwnRestart.IF_CHANGED:
            changes = replace(current.changes, own_restart=OwnRestart.REQUIRED)
            self._current = replace(current, changes=changes)
            self._unwritten = True

    def flush(self, *, sync: bool = False) -> None:
        """Bring the file up to date: before a long wait, and with `sync` before the agent restarts itself."""
        if self._current is not None and (self._unwritten or sync):
            self._save(sync=sync)

    def commit(self, document: Mapping[str, object]) -> None:
        """Record that the OSC has been applied to its end.

        Args:
            document: the whole OSC as it was received.

        Raises:
            FileError: one of the writes failed; calling it again is right.
        """
        self.flush()
        current = self._begun()
        typed = {**document, "apiVersion": API_VERSION, "kind": KIND}
        self._generations.write(self._last_applied_path, dump_state(typed), mode=STATE_MODE)
        self._torn, self._older, self._looked, self._also = False, False, True, None
        if not current.unfinished:
            return
        finished = self._finished
        self._current = Pending(current.checksum, secret_digests=current.secret_digests, sequence=current.sequence)
        self._finished = set()
        try:
            self._save(sync=True)
        except FileError:
            # What the file still says is not forgotten, so that the next pass commits again.
            self._current, self._finished = replace(current, sequence=self._current.sequence), finished
            raise
        self._parts.clear()

    def _read_once(self) -> Loaded:
        if self._loaded is None:
            self._loaded = self._load()
            self._current = self._loaded.pending
        return self._loaded

    def _load(self) -> Loaded:
        try:
            content = self._read(self._pending_path)
            if content is None:
                # One that was there and is gone, set aside by a process that was killed then, is as good as a damaged one.
                before = self._generation_before()
                return Loaded(None, compare_with_disk=before is not None, before=before)
            pending = decode_pending(content)
        except (FileError, TornPending) as error:
            log.error("Pending changes unreadable", path=str(self._pending_path), error=error)
            self._set_aside(self._pending_path)
            return Loaded(None, compare_with_disk=True, before=self._generation_before())
        return Loaded(pending, compare_with_disk=pending.foreign and pending.unfinished)

    def take_news(self) -> list[str]:
        """Return what was found out about state files since the last call, for operators."""
        news, self._news = self._news, []
        return news

    def _generation_before(self) -> Pending | None:
        content = self._generations.held(self._pending_path)
        try:
            return None if content is None else decode_pending(content)
        except TornPending as error:
            log.debug("Pending changes of before not readable", error=error)
            return None

    def _notice_loss(self, path: Path) -> None:
        """One that was there and is gone, also set aside by a process that was killed then, is as good as a damaged one."""
        if not self._torn and (kept := self._newest_kept()) is not None:
            log.error("Last applied operating system config is gone", path=str(path))
            self._news.append(f"{path} is gone; everything is compared with the machine")
            self._torn, self._older, self._also = True, False, kept

    def _newest_kept(self) -> Decoded | None:
        for content in self._generations.kept(self._last_applied_path):
            try:
                return decode_document(load_state(content))
            except TerminalError as error:
                log.debug("Kept operating system config not readable", error=error)
        return None

    def _set_aside(self, path: Path) -> None:
        """Keep a damaged file for somebody to look at; what it said is found out from the API and the disk."""
        try:
            if (place := set_aside(path)) is not None:
                self._news.append(
                    f"a state file was damaged and is kept as {place}; its content was found out from the machine"
                )
        except FileError as error:
            log.error("Damaged file not set aside", path=str(path), error=error)

    def _begun(self) -> Pending:
        self._read_once()
        if self._current is None:
            raise FatalError("no apply has begun")
        return self._current

    def _finish(self, step: Step) -> None:
        current = self._begun()
        if isinstance(step, WriteFile | WriteUnit | RemoveUnit) or (
            isinstance(step, RemoveFile) and step.name.startswith(f"{UNIT_DIRECTORY}/")
        ):
            self._finished.discard(_RELOAD)
            if not current.changes.reload:
                self._current = replace(current, changes=replace(current.changes, reload=True))
        parts = self._parts.setdefault(step.entry, set())
        parts.add(step.id)
        if len(parts) >= step.parts:
            self._finished.add(step.entry)

    def _save(self, *, sync: bool) -> None:
        current = self._begun()
        self._current = replace(current, sequence=current.sequence + 1)
        content = encode_pending(self.pending or self._current)
        self._write(self._pending_path, content, mode=STATE_MODE, sync=sync)
        if sync:
            self._generations.hold(self._pending_path)
        self._unwritten = False
        self._unwritten_steps = 0
        self._written_at = self._clock.monotonic()
