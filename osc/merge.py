"""What of an OSC applies to this host: its files, and units joined by name.

Source: contract 6.3, points 3 and 4; gardener pkg/nodeagent/controller/operatingsystemconfig/changes.go.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from osc.types import DropIn, File, OperatingSystemConfig, Unit


@dataclass(frozen=True, slots=True)
class Effective:
    """Files and units of this host, in order of first appearance, one per path and name."""

    files: tuple[File, ...] = ()
    units: tuple[Unit, ...] = ()

    def files_by_path(self) -> dict[str, File]:
        """Return the files under their paths."""
        return {file.path: file for file in self.files}

    def units_by_name(self) -> dict[str, Unit]:
        """Return the units under their names."""
        return {unit.name: unit for unit in self.units}

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
    return Effective(tuple(files.values()), merge_units((*config.spec.units, *config.status.extension_units)))


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
