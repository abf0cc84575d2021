"""Unit files and drop-ins in /etc/systemd/system.

What other sources placed there stays: only drop-ins that the caller names are removed (W37). Nothing here talks to
systemd; a reload makes the changes known to it.

Source: contract 6.6; gardener pkg/nodeagent/controller/operatingsystemconfig/reconciler.go.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from agents.core import files
from systemd import units

FILE_MODE = 0o600


class UnitFiles:
    """The unit files of one machine. Every method blocks on the disk and is safe to repeat.

    Args:
        root: where the machine's file system starts.
        take_back: how a file goes; for a caller that knows what was there before it. Returns whether there was one.
    """

    def __init__(self, *, root: Path = Path("/"), take_back: Callable[[Path], bool] = files.remove) -> None:
        self._root = root
        self._take_back = take_back

    def contents(self, name: str, *, content: bytes | None, drop_ins: Mapping[str, bytes]) -> dict[Path, bytes]:
        """Return what a unit's files hold, by path: its unit file, if it has content, and its drop-ins.

        The caller writes them, all units' together; `FILE_MODE` is theirs.

        Raises:
            InvalidUnit: a name cannot be part of a path.
        """
        found = {} if content is None else {units.unit_path(name, root=self._root): content}
        found.update({units.drop_in_path(name, drop_in, root=self._root): drop_ins[drop_in] for drop_in in drop_ins})
        return found

    def remove(self, name: str, *, unit_file: bool, drop_ins: Iterable[str]) -> bool:
        """Remove a unit's file, if it was ours, the named drop-ins, and their directory if nothing else is in it.

        Returns:
            Whether there was something to remove.

        Raises:
            InvalidUnit: a name cannot be part of a path; nothing was changed.
            FileError: with the path.
        """
        leftovers = [units.drop_in_path(name, drop_in, root=self._root) for drop_in in drop_ins]
        changed = unit_file and self._take_back(units.unit_path(name, root=self._root))
        for path in leftovers:
            changed |= self._take_back(path)
        return files.remove_directory_if_empty(units.drop_in_directory(name, root=self._root)) or changed

    def unmask(self, name: str) -> bool:
        """Remove the links with which a unit is masked, also until the next boot only; returns whether there was one.

        Raises:
            FileError: one cannot be removed.
        """
        places = (units.unit_path(name, root=self._root), self._root / units.RUNTIME_DIRECTORY / name)
        removed = [files.remove(path) for path in places if path.is_symlink() and str(path.readlink()) == "/dev/null"]
        return any(removed)

    def is_missing(self, name: str) -> bool:
        """Tell whether there is nothing at all in our directory under a unit's name."""
        return not os.path.lexists(units.unit_path(name, root=self._root))

    def exists(self, name: str) -> bool:
        """Tell whether there is a unit file in our directory; the operating system's own do not count."""
        return units.unit_path(name, root=self._root).is_file()
