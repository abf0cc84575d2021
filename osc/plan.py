"""The order in which changes are carried out.

A plan is made from what is left, so resuming after a kill is making the plan again. Each step is safe to repeat.

Order (contract 6.2, steps 7 and 13 to 23): containerd's configuration, files, registries, files out of images, units,
removed units, one daemon-reload, own restart, unit commands, removed registries and files, registries that have to be
probed (their mirror may run on this very node). Three things deviate on purpose: removed units that had no content of ours
are restarted after the reload (W17); what stands in the way of a new file is removed first; and files that systemd reads
are removed before the reload.

A step waits only for the steps it needs (`after`); `Plan.blocked` tells what cannot run once some have failed, so that
everything else goes on.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from osc.containerd import CERTS_DIRECTORY, CONTAINERD_UNIT, hosts_file
from osc.diff import Changes, CommandName, Entry, EntryKind, OwnRestart, UnitChange
from osc.merge import Effective, Runtime
from osc.types import OWN_UNIT, UNIT_DIRECTORY, DropIn, File, Registry, Unit
from osc.validation import check_name, check_path, folders_of

KUBELET_UNIT = "kubelet.service"
CPU_MANAGER_STATE = "/var/lib/kubelet/cpu_manager_state"
"""The kubelet refuses to start with another policy while this is there."""

_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One repeatable act.

    Attributes:
        name: path of the file or name of the unit.
        after: ids of the steps that must have succeeded.
    """

    verb: ClassVar[str]
    kind: ClassVar[EntryKind]
    parts: ClassVar[int] = 1
    """How many steps of a plan finish one journal entry together."""

    name: str = ""
    after: frozenset[str] = _NOTHING

    @property
    def id(self) -> str:
        """Stable name of the step: the same act has the same id in every plan."""
        return f"{self.verb}:{self.name}" if self.name else self.verb

    @property
    def entry(self) -> Entry:
        """The journal entry that this step finishes, with the entry's other parts if it has several."""
        return Entry(self.kind, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFile(Step):
    """Make a file have its content and mode."""

    verb: ClassVar[str] = "write-file"
    kind: ClassVar[EntryKind] = EntryKind.FILE_CHANGED
    file: File


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractFile(WriteFile):
    """The same for a file that comes out of a container image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigureContainerd(Step):
    """Make containerd's configuration file say what the OSC asks for."""

    verb: ClassVar[str] = "configure-containerd"
    kind: ClassVar[EntryKind] = EntryKind.CONTAINERD_CONFIG
    runtime: Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRegistry(Step):
    """Write a registry's `hosts.toml`; `name` is the upstream."""

    verb: ClassVar[str] = "write-registry"
    kind: ClassVar[EntryKind] = EntryKind.REGISTRY
    registry: Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRegistry(WriteRegistry):
    """The same once all hosts of the registry answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRegistry(Step):
    """Remove the directory of a registry that left the OSC, or only its `hosts.toml` where the OSC has files in there.

    `keep`: paths of those.
    """

    verb: ClassVar[str] = "remove-registry"
    kind: ClassVar[EntryKind] = EntryKind.REGISTRY_DELETED
    keep: frozenset[str] = _NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteUnit(Step):
    """Write the unit file if the unit has content, all its drop-ins, and remove the named drop-ins if they are there."""

    verb: ClassVar[str] = "write-unit"
    kind: ClassVar[EntryKind] = EntryKind.UNIT_CHANGED
    parts: ClassVar[int] = 2
    unit: Unit
    remove_drop_ins: tuple[str, ...] = ()
    remove_file: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EnableUnit(Step):
    """Enable the unit."""

    verb: ClassVar[str] = "enable-unit"
    kind: ClassVar[EntryKind] = EntryKind.UNIT_CHANGED
    parts: ClassVar[int] = 2
    explicit: bool = True
    """False where the OSC leaves `enable` unset, which means enable as well (W38: to be logged)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisableUnit(Step):
    """Disable the unit."""

    verb: ClassVar[str] = "disable-unit"
    kind: ClassVar[EntryKind] = EntryKind.UNIT_CHANGED
    parts: ClassVar[int] = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveUnit(Step):
    """Remove what we brought of a unit.

    If `created` and its unit file exists: disable, stop, remove the file. In any case: remove the named drop-ins, and
    their directory if it is empty then.
    """

    verb: ClassVar[str] = "remove-unit"
    kind: ClassVar[EntryKind] = EntryKind.UNIT_DELETED
    created: bool
    drop_ins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadDaemon(Step):
    """Let systemd read all unit files again."""

    verb: ClassVar[str] = "reload"
    kind: ClassVar[EntryKind] = EntryKind.RELOAD


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartAgent(Step):
    """End the process in order, so that systemd starts it again.

    Attributes:
        required: False if only a change of bytes by one of the `watched` steps calls for it; else it is done at once.
        watched: ids of the steps that write the own unit and its files.
    """

    verb: ClassVar[str] = "restart-agent"
    kind: ClassVar[EntryKind] = EntryKind.OWN_RESTART
    required: bool
    watched: frozenset[str] = _NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUnitCommand(Step):
    """Run a job for a unit and wait for its result.

    `only_if_exists`: the unit left the OSC and belongs to the operating system; run only if systemd knows a fragment.
    """

    verb: ClassVar[str] = "command"
    kind: ClassVar[EntryKind] = EntryKind.COMMAND
    command: CommandName
    only_if_exists: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveFile(Step):
    """Remove a file; missing is fine, directories stay."""

    verb: ClassVar[str] = "remove-file"
    kind: ClassVar[EntryKind] = EntryKind.FILE_DELETED


_KINDS: tuple[type[Step], ...] = (
    ConfigureContainerd, WriteFile, WriteRegistry, ExtractFile, WriteUnit, EnableUnit, DisableUnit, RemoveUnit, ReloadDaemon,
    RestartAgent, RunUnitCommand, RemoveRegistry, RemoveFile, ProbeRegistry,
)  # fmt: skip
VERBS = frozenset(kind.verb for kind in _KINDS)
"""What steps of a plan do; a fixed set, so that each can be counted from the start."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in an order in which they can run one after another; neighbours of one kind may run at the same time."""

    steps: tuple[Step, ...] = ()

    def blocked(self, unfinished: Collection[str]) -> frozenset[str]:
        """Return ids of the steps that cannot run while these have not succeeded, directly or through others."""
        stopped = set(unfinished)
        for step in self.steps:
            if not step.after.isdisjoint(stopped):
                stopped.add(step.id)
        return frozenset(stopped.difference(unfinished))


def plan(changes: Changes, effective: Effective) -> Plan:
    """Order what is left to do.

    Args:
        changes: of a new diff, or of the journal.
        effective: the desired state; units and files are taken from here, so that a journal whose unit objects were
            cut down (W1, contract 6.4 c) cannot do harm.
    """
    return Plan(tuple(_Planner(changes, effective).steps()))


class _Planner:
    def __init__(self, changes: Changes, effective: Effective) -> None:
        self._changes = changes
        self._effective = effective
        self._units = effective.units_by_name()
        self._kept = effective.written_paths()
        hosts = {hosts_file(upstream) for upstream in effective.registries_by_upstream()}
        self._in_the_way = self._kept.union(*map(folders_of, self._kept))
        self._removals = [self._remove_unit(unit) for unit in changes.units_deleted if self._is_removable(unit)]
        self._deletions = [
            file.path
            for file in changes.files_deleted
            if file.path not in self._kept | hosts and not any(check_path(file.path))
        ]

    def steps(self) -> Iterator[Step]:
        early_units = [step for step in self._removals if self._is_in_the_way(step)]
        early_files = [RemoveFile(name=path) for path in self._deletions if path in self._in_the_way]
        first: list[Step] = [*early_units, *early_files]
        yield from self._configure_containerd()
        writes = [*self._write_files(first), *self._registries(probed=False), *self._extract_files(first)]
        writes += self._write_units(first)
        units = [step for step in self._removals if step not in early_units]
        definitions = [
            RemoveFile(name=path)
            for path in self._deletions
            if path.startswith(f"{UNIT_DIRECTORY}/") and path not in self._in_the_way
        ]
        before_reload: list[Step] = [*first, *writes, *units, *definitions]
        yield from before_reload
        reload = self._reload()
        yield from reload
        ids = frozenset(step.id for step in (*before_reload, *reload))
        yield from self._restart_agent(ids)
        commands = self._commands(ids)
        yield from commands
        removed = {step.id for step in (*early_files, *definitions)}
        yield from self._remove_registries()
        yield from self._remove_files(removed, [*self._removals, *commands])
        yield from self._registries(probed=True)

    def _configure_containerd(self) -> Iterator[Step]:
        if self._changes.containerd_config and self._effective.runtime is not None:
            yield ConfigureContainerd(runtime=self._effective.runtime)

    def _registries(self, *, probed: bool) -> Iterator[Step]:
        desired = self._effective.registries_by_upstream()
        kind = ProbeRegistry if probed else WriteRegistry
        for registry in self._changes.registries_desired:
            if (registry.upstream in self._changes.registries_to_probe) is probed and registry.upstream in desired:
                yield kind(name=registry.upstream, registry=desired[registry.upstream])

    def _remove_registries(self) -> Iterator[Step]:
        for name in self._changes.registries_deleted:
            if not any(check_name(name)):
                folder = f"{CERTS_DIRECTORY}/{name}/"
                yield RemoveRegistry(name=name, keep=frozenset(path for path in self._kept if path.startswith(folder)))

    def _files(self, *, of_images: bool) -> list[File]:
        desired = self._effective.files_by_path()
        files = [desired.get(file.path, file) for file in self._changes.files_changed]
        return [file for file in files if (file.content.image_ref is not None) is of_images]

    def _write_files(self, first: Iterable[Step]) -> list[Step]:
        files = self._files(of_images=False)
        return [WriteFile(name=file.path, file=file, after=_obstacles(first, (file.path,))) for file in files]

    def _extract_files(self, first: Iterable[Step]) -> list[Step]:
        files = self._files(of_images=True)
        return [ExtractFile(name=file.path, file=file, after=_obstacles(first, (file.path,))) for file in files]

    def _write_units(self, first: Iterable[Step]) -> Iterator[Step]:
        for change in self._changes.units_changed:
            unit = self._units.get(change.unit.name, change.unit)
            write = self._write_unit(change, unit, _obstacles(first, unit.written_paths()))
            yield write
            if unit.name == KUBELET_UNIT and self._changes.in_place.kubelet_cpu_manager_policy:
                yield RemoveFile(name=CPU_MANAGER_STATE, after=frozenset((write.id,)))
            after = frozenset((write.id,))
            if unit.enable is False and unit.name != OWN_UNIT:
                yield DisableUnit(name=unit.name, after=after)
            else:
                yield EnableUnit(name=unit.name, after=after, explicit=unit.enable is not None)

    def _write_unit(self, change: UnitChange, unit: Unit, after: frozenset[str]) -> WriteUnit:
        gone = tuple(
            name
            for name in _valid_names(change.drop_ins_deleted)
            if f"{unit.drop_in_directory}/{name}" not in self._kept
        )
        remove_file = change.file_removed and unit.path not in self._kept
        return WriteUnit(name=unit.name, unit=unit, remove_drop_ins=gone, remove_file=remove_file, after=after)

    def _is_removable(self, unit: Unit) -> bool:
        return unit.name not in self._units and not any(check_name(unit.name))

    def _remove_unit(self, unit: Unit) -> RemoveUnit:
        created = unit.content is not None and unit.name != OWN_UNIT  # we cannot stop ourselves
        return RemoveUnit(name=unit.name, created=created, drop_ins=_valid_names(unit.drop_ins))

    def _is_in_the_way(self, step: RemoveUnit) -> bool:
        return not self._in_the_way.isdisjoint(_paths_removed_by(step))

    def _reload(self) -> list[Step]:
        changes = self._changes
        definitions = any(path.startswith(f"{UNIT_DIRECTORY}/") for path in self._deletions)
        needed = (
            changes.reload or changes.files_changed or changes.units_changed or changes.units_deleted or definitions
        )
        return [ReloadDaemon()] if needed else []

    def _needs(self, unit: Unit, ids: frozenset[str]) -> frozenset[str]:
        """Ids of the writes without which a unit must not be started again, as far as the plan has them."""
        writes = {f"{WriteUnit.verb}:{unit.name}", *(f"{WriteFile.verb}:{path}" for path in unit.file_paths)}
        return ids & writes

    def _restart_agent(self, ids: frozenset[str]) -> Iterator[Step]:
        if self._changes.own_restart is OwnRestart.NONE:
            return
        watched = self._needs(self._units.get(OWN_UNIT, Unit(name=OWN_UNIT)), ids)
        required = self._changes.own_restart is OwnRestart.REQUIRED
        yield RestartAgent(required=required, watched=watched, after=watched | (ids & {ReloadDaemon.verb}))

    def _commands(self, ids: frozenset[str]) -> list[Step]:
        steps: list[Step] = []
        for command in self._changes.commands:
            unit = self._units.get(command.name)
            needs = self._needs(unit, ids) if unit else ids & {f"{RemoveUnit.verb}:{command.name}"}
            if command.name == CONTAINERD_UNIT and self._changes.containerd_config:
                needs |= {ConfigureContainerd.verb}
            steps.append(
                RunUnitCommand(
                    name=command.name,
                    command=command.command,
                    only_if_exists=unit is None,
                    after=needs | (ids & {ReloadDaemon.verb}),
                )
            )
        return steps

    def _remove_files(self, done: set[str], waited_for: Collection[Step]) -> Iterator[Step]:
        for path in self._deletions:
            users = self._changes.file_users.get(path, ())
            step = RemoveFile(name=path, after=frozenset(other.id for other in waited_for if other.name in users))
            if step.id not in done:
                yield step


def _valid_names(drop_ins: Iterable[DropIn]) -> tuple[str, ...]:
    """Names that are safe in a path: state written by another node agent was never validated (W7)."""
    return tuple(drop_in.name for drop_in in drop_ins if not any(check_name(drop_in.name)))


def _paths_removed_by(step: Step) -> Iterator[str]:
    yield f"{UNIT_DIRECTORY}/{step.name}" if isinstance(step, RemoveUnit) else step.name
    if isinstance(step, RemoveUnit):
        yield from (f"{UNIT_DIRECTORY}/{step.name}.d/{drop_in}" for drop_in in step.drop_ins)


def _obstacles(first: Iterable[Step], paths: Iterable[str]) -> frozenset[str]:
    """Ids of early removals that take away one of these paths, or a file in the place of one of their folders."""
    first = list(first)
    if not first:
        return _NOTHING
    places = {place for path in paths for place in (path, *folders_of(path))}
    return frozenset(step.id for step in first if not places.isdisjoint(_paths_removed_by(step)))
