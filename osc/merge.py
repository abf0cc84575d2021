"""What of an OSC applies to this host: its files, and units joined by name.

Source: contract 6.3, points 3 and 4; gardener pkg/nodeagent/controller/operatingsystemconfig/changes.go.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from osc.types import DropIn, File, OperatingSystemConfig, Plugin, Registry, Unit

CONTAINERD = "containerd"


@dataclass(frozen=True, slots=True)
class Runtime:
    """Settings of containerd."""

    sandbox_image: str = ""
    cgroup_driver: str | None = None
    plugins: tuple[Plugin, ...] = ()
    registries: tuple[Registry, ...] = ()

    @property
    def of_config_file(self) -> tuple[object, ...]:
        """What decides on the content of containerd's configuration file."""
        return (self.sandbox_image, self.cgroup_driver, self.plugins)


@dataclass(frozen=True, slots=True)
class Effective:
    """Files and units of this host, in order of first appearance, one per path and name, and settings of containerd."""

    files: tuple[File, ...] = ()
    units: tuple[Unit, ...] = ()
    runtime: Runtime | None = None
    """None where containerd is not the OSC's business."""

    def files_by_path(self) -> dict[str, File]:
        """Return the files under their paths."""
        return {file.path: file for file in self.files}

    def units_by_name(self) -> dict[str, Unit]:
        """Return the units under their names."""
        return {unit.name: unit for unit in self.units}

    def registries_by_upstream(self) -> dict[str, Registry]:
        """Return the registries under their upstreams."""
        return {registry.upstream: registry for registry in (self.runtime.registries if self.runtime else ())}

    def secret_files(self) -> tuple[File, ...]:
        """Return the files whose content is in Secrets."""
        return tuple(file for file in self.files if file.content.secret_ref is not None)

    def written_paths(self) -> frozenset[str]:
        """Paths of all files that must be on the disk: the OSC's files, unit files and drop-ins."""
        return frozenset(file.path for file in self.files).union(*(unit.written_paths() for unit in self.units))


def effective(config: OperatingSystemConfig, *, hostname: str) -> Effective:
    """Join spec and status and keep what concerns this host.

    A file with a hostName belongs to that host alone. Of several files with one path, which only an OSC that was never
    validated can have, the last one wins.
    """
    files = {
        file.path: file
        for file in (*config.spec.files, *config.status.extension_files)
        if file.host_name is None or file.host_name == hostname
    }
    units = merge_units((*config.spec.units, *config.status.extension_units))
    return Effective(tuple(files.values()), units, runtime(config))


def runtime(config: OperatingSystemConfig) -> Runtime | None:
    """Return the settings of containerd, None unless the OSC names it and has a section for it (contract 6.14)."""
    cri = config.spec.cri_config
    if cri is None or cri.name != CONTAINERD or cri.containerd is None:
        return None
    section = cri.containerd
    registries = {registry.upstream: registry for registry in section.registries}
    return Runtime(section.sandbox_image, cri.cgroup_driver, section.plugins, tuple(registries.values()))


def merge_units(units: Iterable[Unit]) -> tuple[Unit, ...]:
    """Join units of one name: later enable, command and content win if set, drop-ins and filePaths are appended.

    Of drop-ins with one name the last one wins, as it would on the disk.
    """
    merged: dict[str, Unit] = {}
    for unit in units:
        merged[unit.name] = _join(merged[unit.name], unit) if unit.name in merged else _with_unique_drop_ins(unit)
    return tuple(merged.values())


def _join(first: Unit, second: Unit) -> Unit:
    return Unit(
        name=first.name,
        command=first.command if second.command is None else second.command,
        enable=first.enable if second.enable is None else second.enable,
        content=first.content if second.content is None else second.content,
        drop_ins=_last_wins((*first.drop_ins, *second.drop_ins)),
        file_paths=(*first.file_paths, *second.file_paths),
    )


def _with_unique_drop_ins(unit: Unit) -> Unit:
    unique = _last_wins(unit.drop_ins)
    return unit if len(unique) == len(unit.drop_ins) else unit.model_copy(update={"drop_ins": unique})


def _last_wins(drop_ins: tuple[DropIn, ...]) -> tuple[DropIn, ...]:
    return tuple({drop_in.name: drop_in for drop_in in drop_ins}.values())
