"""What of all OSCs that were ever applied, completely or in part, may still be on this machine.

Last-applied says what a finished apply left, the journal what an unfinished one may have touched: all of that is ours, and
what was there before us is kept among the originals. Where the journal is another agent's, or damaged, there may be no
originals: what was left to do, or was asked for last, is ours only if it is on the disk exactly so. The rest stays, and
is named.

Source: contract 6.4 b, 8.4, 9 W41.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agents.core import comparing
from agents.core.errors import AgentError, TerminalError
from agents.core.files import FileError, read_optional
from nodeagent.host.originals import Originals
from osc import codec
from osc.diff import Changes, Touched, TouchedUnit
from osc.journal import Journal
from osc.merge import Effective, effective
from osc.pending import Pending
from osc.types import OWN_UNIT, File, Unit
from osc.validation import check_name, check_path

Comparer = Callable[[str, bytes], bool | None]
"""Tells whether a file of the machine holds exactly this, None if there is none or it cannot be read."""


class NothingKnown(TerminalError):
    """The state files are damaged so that nobody can tell what is ours."""


@dataclass(frozen=True, slots=True)
class UnitRemains:
    """What is ours of a unit: its file, if `created`, and these drop-ins."""

    name: str
    created: bool
    drop_ins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remains:
    """What is to be removed.

    Attributes:
        units: by name, the agent's own last.
        files: paths, also all of which an original is kept.
        registries: upstreams.
        unproven: paths that exist, were perhaps touched, and that nothing shows to be ours.
    """

    units: tuple[UnitRemains, ...] = ()
    files: tuple[str, ...] = ()
    registries: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()


def find_remains(*, journal: Journal, originals: Originals, desired: Path, hostname: str, root: Path) -> Remains:
    """Read the state files and compare with the disk where they do not tell. Blocks.

    Args:
        journal: last-applied and pending changes.
        originals: what was there before us.
        desired: file with the OSC that was asked for last.
        hostname: ours; files of other hosts are not ours.
        root: where the machine's file system starts.

    Raises:
        NothingKnown: last-applied is damaged, and what was asked for last is not known either.
    """
    last, loaded = journal.load_last_applied(), journal.load()
    complete = Effective() if last.decoded is None else effective(last.decoded.config, hostname=hostname)
    asked = _read_desired(desired, hostname) if last.doubtful or loaded.compare_with_disk else None
    if last.torn and asked is None and last.also is None:
        raise NothingKnown(
            "last applied operating system config is damaged: move it away to reset without it; its files and units stay",
            path="last-applied-osc.yaml",
        )

    def holds(path: str, content: bytes) -> bool | None:
        try:
            return comparing.holds(root / path.lstrip("/"), content)
        except FileError:
            return None

    found = _Found(complete, loaded.pending or loaded.before, holds)
    found.files |= originals.paths
    if last.also is not None:
        found.add_likely(effective(last.also.config, hostname=hostname))
    if asked is not None:
        found.add_likely(asked)
    return found.remains()


def _read_desired(path: Path, hostname: str) -> Effective | None:
    try:
        content = read_optional(path)
        return None if content is None else effective(codec.decode(content).config, hostname=hostname)
    except AgentError:
        return None


class _Found:
    def __init__(self, complete: Effective, pending: Pending | None, holds: Comparer) -> None:
        changes = Changes() if pending is None else pending.changes
        touched = Touched() if pending is None else pending.touched | changes.touched()
        self._holds = holds
        self.files = set(complete.files_by_path())
        own = {OWN_UNIT: TouchedUnit(created=True)}
        self._units: dict[str, TouchedUnit] = dict((Touched.of(complete) | Touched(units=own)).units)
        self._registries = {*complete.registries_by_upstream(), *touched.registries}
        self._unproven: set[str] = set()
        doubtful = pending is not None and pending.foreign
        left_files = {file.path: file for file in changes.files_changed if doubtful}
        left_units = {change.unit.name: change.unit for change in changes.units_changed if doubtful}
        for path in touched.paths:
            self._add_file(path, left_files.get(path))
        for name, unit in touched.units.items():
            self._add_unit(name, unit, left_units.get(name))

    def add_likely(self, asked: Effective) -> None:
        """Add what is as an OSC says that was perhaps begun."""
        for file in asked.files:
            self._add_file(file.path, file)
        for unit in asked.units:
            drop_ins = frozenset(drop_in.name for drop_in in unit.drop_ins)
            self._add_unit(unit.name, TouchedUnit(unit.content is not None, drop_ins), unit)
        self._registries |= asked.registries_by_upstream().keys()

    def remains(self) -> Remains:
        """Return all of it; names that are no part of a path were never written by us."""
        units = [
            UnitRemains(
                name, unit.created, tuple(sorted(drop_in for drop_in in unit.drop_ins if not any(check_name(drop_in))))
            )
            for name, unit in sorted(self._units.items(), key=lambda item: (item[0] == OWN_UNIT, item[0]))
            if not any(check_name(name))
        ]
        return Remains(
            units=tuple(units),
            files=tuple(sorted(path for path in self.files if not any(check_path(path)))),
            registries=tuple(sorted(name for name in self._registries if not any(check_name(name)))),
            unproven=tuple(sorted(self._unproven - self.files)),
        )

    def _add_file(self, path: str, left: File | None) -> None:
        """Add a path; `left` is the file if it may be somebody else's, because it may not have been written yet."""
        if path in self.files:
            return
        if left is None or self._is_as(path, left):
            self.files.add(path)
        elif self._holds(path, b"") is not None:
            self._unproven.add(path)

    def _add_unit(self, name: str, touched: TouchedUnit, left: Unit | None) -> None:
        """Add a unit; `left` is the unit if what it has may be somebody else's; what it does not have was touched before."""
        known = self._units.get(name, TouchedUnit())
        created, drop_ins = touched.created, touched.drop_ins
        if left is not None:
            if created and not known.created and left.content is not None:
                created = self._is_text(left.path, left.content)
            drop_ins -= frozenset(self._strangers(left, drop_ins - known.drop_ins))
        self._units[name] = known | TouchedUnit(created, drop_ins)

    def _strangers(self, left: Unit, drop_ins: frozenset[str]) -> Iterator[str]:
        """Yield the drop-ins that are to be written and are not on the disk as they shall be."""
        for drop_in in left.drop_ins:
            path = f"{left.drop_in_directory}/{drop_in.name}"
            if drop_in.name in drop_ins and not self._is_text(path, drop_in.content):
                yield drop_in.name

    def _is_text(self, path: str, text: str) -> bool:
        """Tell whether a file of a unit is exactly as it shall be."""
        same = self._holds(path, text.encode())
        if same is False:
            self._unproven.add(path)
        return bool(same)

    def _is_as(self, path: str, file: File) -> bool:
        if file.content.inline is None:
            return False  # a Secret's or an image's bytes are not known here
        try:
            return bool(self._holds(path, codec.decode_file_content(file.content.inline)))
        except AgentError:
            return False
