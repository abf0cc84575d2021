"""What has to change on the machine: the difference between two OSCs, and what is known to be dirty.

The base is last-applied, which says what a *finished* apply left behind. Where an apply was superseded before it ended,
`Touched` names what may differ from that base (contract 6.4 b, W10); where the disk itself was looked at, `Dirty` names
what differs.

Source: contract 6.3; gardener pkg/nodeagent/controller/operatingsystemconfig/changes.go.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

from osc.containerd import CONTAINERD_UNIT
from osc.inplace import InPlaceChanges
from osc.merge import Effective
from osc.types import OWN_UNIT, DropIn, File, Registry, Unit

CommandName = Literal["restart", "stop"]


class OwnRestart(StrEnum):
    """Whether the agent must end so that systemd starts it again (contract 1.8)."""

    NONE = "none"
    IF_CHANGED = "if-changed"
    """Its unit or one of that unit's files is written: only if bytes on the disk really change."""
    REQUIRED = "required"


class EntryKind(StrEnum):
    """The lists of the pending-changes file, and its two flags."""

    FILE_CHANGED = "file-changed"
    FILE_DELETED = "file-deleted"
    UNIT_CHANGED = "unit-changed"
    UNIT_DELETED = "unit-deleted"
    COMMAND = "command"
    CONTAINERD_CONFIG = "containerd-config"
    REGISTRY = "registry"
    REGISTRY_DELETED = "registry-deleted"
    IN_PLACE = "in-place"
    OWN_RESTART = "own-restart"
    RELOAD = "reload"


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that is left to do, as the journal knows it: a list and the path or name in it."""

    kind: EntryKind
    key: str = ""


@dataclass(frozen=True, slots=True)
class TouchedUnit:
    """What an unfinished apply may have put on the disk for a unit: its file, and these drop-ins."""

    created: bool = False
    drop_ins: frozenset[str] = frozenset()

    def __or__(self, other: "TouchedUnit") -> "TouchedUnit":
        return TouchedUnit(self.created or other.created, self.drop_ins | other.drop_ins)


@dataclass(frozen=True, slots=True)
class Touched:
    """Everything that may differ from last-applied because an apply began and did not end."""

    paths: frozenset[str] = frozenset()
    units: Mapping[str, TouchedUnit] = field(default_factory=dict)
    registries: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.paths or self.units or self.registries)

    def __or__(self, other: "Touched") -> "Touched":
        units = dict(self.units)
        for name, unit in other.units.items():
            units[name] = units.get(name, TouchedUnit()) | unit
        return Touched(self.paths | other.paths, units, self.registries | other.registries)

    def all_paths(self) -> frozenset[str]:
        """Return the paths of files, unit files and drop-ins."""
        return self.paths.union(*(_paths_of(name, unit) for name, unit in self.units.items()))

    @staticmethod
    def of(effective: Effective) -> "Touched":
        """Everything that applying this OSC may touch: for a caller whose journal is lost, but not the OSC."""
        return Touched(
            frozenset(file.path for file in effective.files),
            {unit.name: _touch(unit) for unit in effective.units},
            frozenset(effective.registries_by_upstream()),
        )


@dataclass(frozen=True, slots=True)
class Dirty:
    """Paths of OSC files, names of units and upstreams of registries that were seen to differ from what they should be."""

    paths: frozenset[str] = frozenset()
    units: frozenset[str] = frozenset()
    registries: frozenset[str] = frozenset()
    still: frozenset[tuple[str, str]] = frozenset()
    """Units that are not to be restarted for one of their paths that is dirty; the empty path is the unit itself."""
    restarted: frozenset[str] = frozenset()
    """Units that are to be restarted for what an apply that has not ended puts right already."""

    def __bool__(self) -> bool:
        return bool(self.paths or self.units or self.registries or self.restarted)

    def __or__(self, other: "Dirty") -> "Dirty":
        # Whoever wants a restart of what is dirty gets it.
        restarted = self._restarted(other) | other._restarted(self)
        return Dirty(
            self.paths | other.paths,
            self.units | other.units,
            self.registries | other.registries,
            (self.still | other.still) - restarted,
            self.restarted | other.restarted,
        )

    def restarts(self, unit: Unit) -> bool:
        """Tell whether a unit is to be restarted for something that is dirty."""
        about = {(unit.name, path) for path in self.paths.intersection(unit.file_paths)}
        if unit.name in self.units:
            about.add((unit.name, ""))
        return not about <= self.still

    def _restarted(self, other: "Dirty") -> frozenset[tuple[str, str]]:
        return frozenset(
            (unit, path)
            for unit, path in other.still - self.still
            if (path in self.paths if path else unit in self.units)
        )


@dataclass(frozen=True, slots=True)
class UnitChange:
    """A unit to be written: the whole desired unit, and which of its drop-ins differ from before.

    `file_removed`: it has no content, and its unit file came from an apply that was superseded. (Where last-applied had
    content and the new OSC has none, the unit file stays: contract 6.6.)
    """

    unit: Unit
    drop_ins_changed: tuple[DropIn, ...] = ()
    drop_ins_deleted: tuple[DropIn, ...] = ()
    file_removed: bool = False


@dataclass(frozen=True, slots=True)
class UnitCommand:
    """A job to be run for a unit after the daemon was reloaded."""

    name: str
    command: CommandName


@dataclass(frozen=True, slots=True)
class Changes:
    """What is left to do, item by item.

    Attributes:
        containerd_config: whether containerd's configuration file has to be written.
        registries_desired: registries whose `hosts.toml` has to be as they say.
        registries_to_probe: upstreams of those whose hosts must answer first.
        registries_deleted: upstreams whose directory goes.
        in_place: which parts of an update in place are due.
        file_users: for a deleted file, the units of the old OSC that named it in their filePaths.
        reload: whether systemd has not yet read what was written.
        own_restart: whether the agent itself must be started again.
    """

    files_changed: tuple[File, ...] = ()
    files_deleted: tuple[File, ...] = ()
    units_changed: tuple[UnitChange, ...] = ()
    units_deleted: tuple[Unit, ...] = ()
    commands: tuple[UnitCommand, ...] = ()
    containerd_config: bool = False
    registries_desired: tuple[Registry, ...] = ()
    registries_to_probe: frozenset[str] = frozenset()
    registries_deleted: tuple[str, ...] = ()
    in_place: InPlaceChanges = field(default_factory=InPlaceChanges)
    file_users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reload: bool = False
    own_restart: OwnRestart = OwnRestart.NONE

    def __bool__(self) -> bool:
        return bool(self.entries())

    def entries(self) -> frozenset[Entry]:
        """Return all that is left, as journal entries."""
        entries = {Entry(EntryKind.FILE_CHANGED, file.path) for file in self.files_changed}
        entries |= {Entry(EntryKind.FILE_DELETED, file.path) for file in self.files_deleted}
        entries |= {Entry(EntryKind.UNIT_CHANGED, change.unit.name) for change in self.units_changed}
        entries |= {Entry(EntryKind.UNIT_DELETED, unit.name) for unit in self.units_deleted}
        entries |= {Entry(EntryKind.COMMAND, command.name) for command in self.commands}
        entries |= {Entry(EntryKind.REGISTRY, registry.upstream) for registry in self.registries_desired}
        entries |= {Entry(EntryKind.REGISTRY_DELETED, upstream) for upstream in self.registries_deleted}
        entries |= {Entry(EntryKind.IN_PLACE, name) for name in self.in_place.names}
        if self.containerd_config:
            entries.add(Entry(EntryKind.CONTAINERD_CONFIG))
        if self.reload:
            entries.add(Entry(EntryKind.RELOAD))
        if self.own_restart is not OwnRestart.NONE:
            entries.add(Entry(EntryKind.OWN_RESTART))
        return frozenset(entries)

    def without(self, done: Collection[Entry]) -> "Changes":
        """Return what is left once these entries are done."""

        def left(kind: EntryKind, key: str) -> bool:
            return Entry(kind, key) not in done

        registries = tuple(item for item in self.registries_desired if left(EntryKind.REGISTRY, item.upstream))
        return Changes(
            files_changed=tuple(file for file in self.files_changed if left(EntryKind.FILE_CHANGED, file.path)),
            files_deleted=tuple(file for file in self.files_deleted if left(EntryKind.FILE_DELETED, file.path)),
            units_changed=tuple(item for item in self.units_changed if left(EntryKind.UNIT_CHANGED, item.unit.name)),
            units_deleted=tuple(unit for unit in self.units_deleted if left(EntryKind.UNIT_DELETED, unit.name)),
            commands=tuple(command for command in self.commands if left(EntryKind.COMMAND, command.name)),
            containerd_config=self.containerd_config and left(EntryKind.CONTAINERD_CONFIG, ""),
            registries_desired=registries,
            registries_to_probe=self.registries_to_probe & {registry.upstream for registry in registries},
            registries_deleted=tuple(
                name for name in self.registries_deleted if left(EntryKind.REGISTRY_DELETED, name)
            ),
            in_place=self.in_place.without(entry.key for entry in done if entry.kind is EntryKind.IN_PLACE),
            file_users=self.file_users,
            reload=self.reload and left(EntryKind.RELOAD, ""),
            own_restart=self.own_restart if left(EntryKind.OWN_RESTART, "") else OwnRestart.NONE,
        )

    def touched(self) -> Touched:
        """Return what carrying this out may touch."""
        units = {change.unit.name: _touch(change.unit, change.drop_ins_deleted) for change in self.units_changed}
        units |= {unit.name: _touch(unit) for unit in self.units_deleted}
        registries = frozenset((*(registry.upstream for registry in self.registries_desired), *self.registries_deleted))
        return Touched(frozenset(file.path for file in (*self.files_changed, *self.files_deleted)), units, registries)


def diff(
    new: Effective,
    *,
    old: Effective | None,
    touched: Touched | None = None,
    dirty: Dirty | None = None,
    containerd_config: bool = False,
    in_place: InPlaceChanges | None = None,
) -> Changes:
    """Compute the changes that lead to `new`.

    Args:
        new: desired files and units of this host.
        old: the same of last-applied; None on the first run: everything has changed, nothing is deleted.
        touched: what an unfinished apply may have changed since last-applied; counts as changed even if `new` equals
            `old`, and what only that apply brought is deleted.
        dirty: what was seen to differ, on the disk or in a referenced Secret; counts as changed.
        containerd_config: whether containerd's configuration file differs from what it should be (W16: looked at, not
            guessed from the OSC).
        in_place: which parts of an update in place are due.
    """
    base = old or Effective()
    touched = touched or Touched()
    dirty = dirty or Dirty()
    units_deleted = _deleted_units(new, base, touched)
    removed_with_units = frozenset[str]().union(*(unit.written_paths() for unit in units_deleted))
    changed_files = _changed_files(new, base, touched.all_paths() | dirty.paths | removed_with_units)
    units_changed = _changed_units(new, base, touched.units, dirty.units, {file.path for file in changed_files})
    files_deleted = _deleted_files(new, base, touched)
    restarted = [
        UnitCommand(unit.name, "restart") for unit in units_deleted if unit.content is None and unit.name != OWN_UNIT
    ]
    users = _users(base, {file.path for file in files_deleted})
    registries = new.registries_by_upstream()
    known = base.registries_by_upstream()
    rewritten = {
        upstream: registry
        for upstream, registry in registries.items()
        if known.get(upstream) != registry or upstream in touched.registries or upstream in dirty.registries
    }
    changes = Changes(
        files_changed=changed_files,
        files_deleted=files_deleted,
        units_changed=units_changed,
        units_deleted=units_deleted,
        commands=tuple(restarted),
        registries_desired=tuple(rewritten.values()),
        registries_to_probe=frozenset(
            upstream
            for upstream, registry in rewritten.items()
            if registry.readiness_probe and (known.get(upstream) != registry or upstream in touched.registries)
        ),
        registries_deleted=tuple(sorted((known.keys() | touched.registries) - registries.keys())),
        in_place=in_place or InPlaceChanges(),
        file_users=users,
    )
    return with_containerd_config(_with_commands(changes, units_changed), changed=containerd_config)


def with_containerd_config(changes: Changes, *, changed: bool, restart: bool = True) -> Changes:
    """Add containerd's configuration file, and one restart of containerd for it, to what is left."""
    if not changed:
        return changes
    listed = not restart or any(command.name == CONTAINERD_UNIT for command in changes.commands)
    commands = changes.commands if listed else (*changes.commands, UnitCommand(CONTAINERD_UNIT, "restart"))
    return replace(changes, containerd_config=True, commands=commands)


def add_dirty(changes: Changes, new: Effective, dirty: Dirty) -> Changes:
    """Add what was seen to differ to the changes that are left of an apply that is resumed."""
    listed_files = {file.path for file in changes.files_changed}
    files = tuple(file for file in new.files if file.path in dirty.paths and file.path not in listed_files)
    listed_registries = {registry.upstream for registry in changes.registries_desired}
    registries = tuple(
        registry
        for upstream, registry in new.registries_by_upstream().items()
        if upstream in dirty.registries and upstream not in listed_registries
    )
    dirty = replace(dirty, paths=frozenset(file.path for file in files))
    listed_units = {change.unit.name for change in changes.units_changed}
    units = tuple(
        UnitChange(unit, unit.drop_ins)
        for unit in new.units
        if unit.name not in listed_units and (unit.name in dirty.units or dirty.restarts(unit))
    )
    again = [UnitChange(unit) for unit in new.units if unit.name in dirty.restarted]
    if not files and not units and not registries and not again:
        return changes
    extended = replace(
        changes,
        files_changed=(*changes.files_changed, *files),
        units_changed=(*changes.units_changed, *units),
        registries_desired=(*changes.registries_desired, *registries),
    )
    restarted = _with_commands(extended, [*again, *(change for change in units if dirty.restarts(change.unit))])
    return replace(restarted, reload=restarted.reload or bool(units))


def finished(wanted: Effective, left: Changes) -> Effective:
    """Return what an apply that has not ended has brought already: desired files, units and registries with nothing left to do.

    Of containerd nothing counts before its configuration is written.
    """
    files = {file.path for file in left.files_changed}
    units = {change.unit.name for change in left.units_changed}
    registries = {registry.upstream for registry in left.registries_desired}
    runtime = wanted.runtime
    if runtime is not None:
        kept = tuple(registry for registry in runtime.registries if registry.upstream not in registries)
        runtime = None if left.containerd_config else replace(runtime, registries=kept)
    return Effective(
        tuple(file for file in wanted.files if file.path not in files),
        tuple(unit for unit in wanted.units if unit.name not in units),
        runtime,
    )


def changed_secrets(new: Effective, before: Mapping[str, str], now: Mapping[str, str]) -> frozenset[str]:
    """Return paths of secretRef files whose content is another than when it was last written (W44).

    Args:
        new: desired files of this host.
        before: digest by path, from the journal; a path without one has no known content and does not count.
        now: digest by path of what the Secrets hold.
    """
    return frozenset(
        file.path
        for file in new.secret_files()
        if file.path in before and now.get(file.path, before[file.path]) != before[file.path]
    )


def command_for(unit: Unit) -> CommandName:
    """Return what a changed unit gets: `start` and nothing at all mean restart as well."""
    return "stop" if unit.enable is False or unit.command == "stop" else "restart"


def _paths_of(name: str, touched: TouchedUnit) -> tuple[str, ...]:
    drop_ins = tuple(DropIn(name=drop_in) for drop_in in touched.drop_ins)
    return Unit(name=name, content="" if touched.created else None, drop_ins=drop_ins).written_paths()


def _touch(unit: Unit, more: Iterable[DropIn] = ()) -> TouchedUnit:
    return TouchedUnit(unit.content is not None, frozenset(drop_in.name for drop_in in (*unit.drop_ins, *more)))


def _with_commands(changes: Changes, units: Iterable[UnitChange]) -> Changes:
    """Add the commands of changed units; the agent's own unit gets a restart of the process instead."""
    listed = {command.name for command in changes.commands}
    commands = list(changes.commands)
    own_restart = changes.own_restart
    for change in units:
        if change.unit.name == OWN_UNIT:
            own_restart = OwnRestart.IF_CHANGED if own_restart is OwnRestart.NONE else own_restart
        elif change.unit.name not in listed:
            listed.add(change.unit.name)
            commands.append(UnitCommand(change.unit.name, command_for(change.unit)))
    complete = replace(changes, commands=tuple(commands), own_restart=own_restart)
    reload = bool(
        complete.files_changed or complete.files_deleted or complete.units_changed or complete.units_deleted or commands
    )
    return replace(complete, reload=reload)


def _changed_files(new: Effective, base: Effective, dirty: frozenset[str]) -> tuple[File, ...]:
    before = base.files_by_path()
    return tuple(file for file in new.files if file.path in dirty or before.get(file.path) != file)


def _deleted_files(new: Effective, base: Effective, touched: Touched) -> tuple[File, ...]:
    """Return old and touched files that nothing of the new OSC puts in the same place."""
    kept = new.written_paths()
    known = base.files_by_path()
    unknown = [File(path=path) for path in sorted(touched.paths - known.keys())]
    return tuple(file for file in (*base.files, *unknown) if file.path not in kept)


def _changed_units(
    new: Effective, base: Effective, touched: Mapping[str, TouchedUnit], dirty: frozenset[str], changed_paths: set[str]
) -> tuple[UnitChange, ...]:
    before = base.units_by_name()
    new_paths = frozenset(file.path for file in new.files)
    changes = []
    for unit in new.units:
        old = before.get(unit.name)
        is_dirty = unit.name in touched or unit.name in dirty
        if old == unit and not is_dirty and changed_paths.isdisjoint(unit.file_paths):
            continue
        changes.append(_unit_change(unit, old, touched.get(unit.name), is_dirty=is_dirty, new_paths=new_paths))
    return tuple(changes)


def _unit_change(
    unit: Unit, old: Unit | None, touched: TouchedUnit | None, *, is_dirty: bool, new_paths: frozenset[str]
) -> UnitChange:
    touched = touched or TouchedUnit()
    known = {drop_in.name: drop_in for drop_in in (old.drop_ins if old else ())}
    candidates = {name: DropIn(name=name) for name in sorted(touched.drop_ins)} | known
    wanted = {drop_in.name for drop_in in unit.drop_ins}
    gone = (drop_in for name, drop_in in candidates.items() if name not in wanted)
    foreign_file = unit.content is None and touched.created and (old is None or old.content is None)
    return UnitChange(
        unit,
        tuple(drop_in for drop_in in unit.drop_ins if is_dirty or known.get(drop_in.name) != drop_in),
        tuple(drop_in for drop_in in gone if f"{unit.drop_in_directory}/{drop_in.name}" not in new_paths),
        file_removed=foreign_file and unit.path not in new_paths,
    )


def _deleted_units(new: Effective, base: Effective, touched: Touched) -> tuple[Unit, ...]:
    """Return old and touched units that are gone. Of the agent's own unit only the drop-ins go, never its file."""
    kept = {unit.name for unit in new.units}
    known = base.units_by_name()
    deleted = []
    for name in [*known, *sorted(touched.units.keys() - known.keys())]:
        if name in kept:
            continue
        unit = known.get(name, Unit(name=name))
        more = touched.units.get(name, TouchedUnit())
        names = {drop_in.name for drop_in in unit.drop_ins}
        extra = tuple(DropIn(name=drop_in) for drop_in in sorted(more.drop_ins - names))
        content = "" if unit.content is None and more.created else unit.content
        content = None if name == OWN_UNIT else content
        deleted.append(unit.model_copy(update={"drop_ins": (*unit.drop_ins, *extra), "content": content}))
    return tuple(deleted)


def _users(base: Effective, deleted: set[str]) -> dict[str, tuple[str, ...]]:
    users: dict[str, list[str]] = defaultdict(list)
    for unit in base.units:
        for path in deleted.intersection(unit.file_paths):
            users[path].append(unit.name)
    return {path: tuple(names) for path, names in users.items()}
