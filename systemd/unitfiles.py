"""Unit files and drop-ins in /etc/systemd/system.

What other sources placed there stays: only drop-ins that the caller names are removed (W37). Nothing here talks to
systemd; a reload makes the changes known to it.

Source: contract 6.6; gardener pkg/nodeagent/controller/operatingsystemconfig/reconciler.go.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from agents.core import files
from systemd import units

FILE_MODE = 0o600
DIRECTORY_MODE = 0o755


class UnitFiles:
    """The unit files of one machine. Every method blocks on the disk and is safe to repeat.

    Args:
        root: where the machine's file system starts.
    """

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._root = root

    def write(
        self, name: str, *, content: bytes | None, drop_ins: Mapping[str, bytes], remove: Iterable[str] = ()
    ) -> bool:
        """Write a unit's file, if it has content, and its drop-ins, and remove drop-ins that it no longer has.

        Args:
            name: of the unit.
            content: of the unit file; None leaves the file alone.
            drop_ins: content by name.
            remove: names of drop-ins to remove.

        Returns:
            Whether anything changed on the disk.

        Raises:
            InvalidUnit: a name cannot be part of a path; nothing was changed.
            FileError: with the path.
        """
        folder = units.drop_in_directory(name, root=self._root)
        contents = {units.drop_in_path(name, drop_in, root=self._root): drop_ins[drop_in] for drop_in in drop_ins}
        leftovers = [units.drop_in_path(name, drop_in, root=self._root) for drop_in in remove]
        changed = False
        if content is not None:
            changed = files.write_atomic(units.unit_path(name, root=self._root), content, mode=FILE_MODE)
        if contents:
            files.ensure_directory(folder, mode=DIRECTORY_MODE)
        for path, drop_in in contents.items():
            changed |= files.write_atomic(path, drop_in, mode=FILE_MODE)
        return self._remove(folder, [path for path in leftovers if path not in contents]) or changed

    def remove(self, name: str, *, unit_file: bool, drop_ins: Iterable[str]) -> bool:
        """Remove a unit's file, if it was ours, the named drop-ins, and their directory if nothing else is in it.

        Returns:
            Whether there was something to remove.

        Raises:
            InvalidUnit: a name cannot be part of a path; nothing was changed.
            FileError: with the path.
        """
        leftovers = [units.drop_in_path(name, drop_in, root=self._root) for drop_in in drop_ins]
        changed = unit_file and files.remove(units.unit_path(name, root=self._root))
        return self._remove(units.drop_in_directory(name, root=self._root), leftovers) or changed

    def exists(self, name: str) -> bool:
        """Tell whether there is a unit file in our directory; the operating system's own do not count."""
        return units.unit_path(name, root=self._root).is_file()

    def drop_ins(self, name: str) -> frozenset[str]:
        """Return the names of all drop-ins in our directory, whoever placed them."""
        folder = units.drop_in_directory(name, root=self._root)
        return frozenset(path.name for path in folder.iterdir()) if folder.is_dir() else frozenset()

    def _remove(self, folder: Path, leftovers: Iterable[Path]) -> bool:
        changed = False
        for path in leftovers:
            changed |= files.remove(path)
        return files.remove_directory_if_empty(folder) or changed
