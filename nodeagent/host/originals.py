"""What was on the machine before an OSC replaced it: kept, and put back when that leaves the OSC.

Before the first write of a path that was never ours, what is there gets a second name below the agent's state directory;
our writes replace files and never change them, so it stays as it was. What the agent brought itself, or an agent before
this one, has no original and is removed.

A ledger that is damaged is set aside and begun anew: what is kept is still put back, as its name tells whose original it is. What was
noted besides, that nothing was there or how a unit was, is lost. One that cannot be read at the moment is an error of whoever asks.

A file that is kept costs no copy where one file system holds both. Nothing is dropped before the OSC without it was
applied to its end, so every step may be repeated after a kill.
"""

import hashlib
import stat
from collections.abc import Collection, Iterable
from pathlib import Path

from pydantic import BaseModel, ValidationError

from agents.core import files
from agents.core.aside import DAMAGED, keep_aside, put_back, set_aside
from agents.core.logging import get_logger
from agents.core.yamlio import dump_json

log = get_logger(__name__)

_LEDGER = "ledger.json"
_FILE_MODE, _FOLDER_MODE = 0o600, 0o700


class FormerUnit(BaseModel, frozen=True):
    """What a unit was before we replaced its file."""

    enabled: bool
    active: bool


class _Entry(BaseModel, frozen=True):
    """`mode`: None if nothing was there. `unit_owed`: the file is back, and the unit is not yet as `unit` says."""

    path: str
    mode: int | None
    unit: FormerUnit | None = None
    unit_owed: bool = False


class _Ledger(BaseModel):
    entries: list[_Entry] = []


class Originals:
    """The ledger of one machine; every method may block on the disk.

    Args:
        folder: where originals are kept.
        root: where the machine's file system starts.
    """

    def __init__(self, *, folder: Path, root: Path) -> None:
        self._folder = folder
        self._root = root
        self._entries: dict[str, _Entry] | None = None
        self._damaged = False
        """Whether there may be originals of which the ledger does not know."""
        self._set_aside = False

    @property
    def paths(self) -> frozenset[str]:
        """Paths of which is known what was there before us, be it nothing."""
        return frozenset(self._load())

    def has(self, path: str) -> bool:
        """Tell whether something was at a path before us, which is put back when the path leaves."""
        return self._mode(path) is not None

    def may_have_folder(self, path: str) -> bool:
        """Tell whether the folder of a path was there before us, so that it stays; after damage nobody knows, and it may have been."""
        return path in self._load() or self._damaged

    def keep(self, paths: Iterable[str], *, in_folders: Collection[str] = (), ours: Collection[str] = ()) -> None:
        """Keep what is at these paths.

        Args:
            paths: of files, none of which was ever written by us.
            in_folders: more of them; of these is noted too that nothing was there, if their folder was.
            ours: those of `in_folders` that hold something of ours, which is no original.

        Raises:
            FileError: not everything is kept; nothing may be overwritten.
        """
        entries, before = dict(self._load()), len(self._load())
        for path in sorted({*paths, *in_folders}):
            try:
                mode = self._mode(path) if path in ours else keep_aside(self._at(path), self._kept(path))
            except files.UnsafePath as error:
                log.debug("Original not kept, and it will not be written either", path=path, error=error)
                continue
            if mode is not None and path not in ours:
                log.info("Original kept", path=path)
            if mode is not None or (path in in_folders and self._at(path).parent.is_dir()):
                entries[path] = _Entry(path=path, mode=mode)
        if len(entries) != before or entries != self._entries:
            files.ensure_directory(self._folder, mode=_FOLDER_MODE)
            self._save(entries)

    def keep_first(self, path: str) -> None:
        """Keep what is at a path that is changed again and again, before the first time; also that nothing is there.

        Raises:
            FileError: it is not kept; nothing may be overwritten.
        """
        if path in self._load() or self.has(path):
            return
        mode = keep_aside(self._at(path), self._kept(path))
        log.info("Original kept", path=path, existed=mode is not None)
        files.ensure_directory(self._folder, mode=_FOLDER_MODE)
        self._save({**self._load(), path: _Entry(path=path, mode=mode)})

    def is_in_place(self, path: str) -> bool:
        """Tell whether a path still, or again, holds the original that is kept.

        Raises:
            FileError: it cannot be read.
        """
        kept, place = self._kept(path), self._at(path)
        if kept.is_symlink() or place.is_symlink():
            return kept.is_symlink() and place.is_symlink() and kept.readlink() == place.readlink()
        content = files.read_optional(kept)
        return content is not None and content == files.read_optional(place)

    def former_unit(self, path: str) -> FormerUnit | None:
        """Return what the unit of this file was before us, None if that was not noted."""
        entry = self._load().get(path)
        return None if entry is None else entry.unit

    @property
    def owed_units(self) -> list[str]:
        """Paths of unit files that are back, and whose units are not as before yet."""
        return sorted(path for path, entry in self._load().items() if entry.unit_owed)

    def note_unit(self, path: str, unit: FormerUnit) -> None:
        """Note what the unit of a file is before it is changed; the file may be one of which nothing is kept, as nothing was there.

        Raises:
            FileError: it is not noted.
        """
        files.ensure_directory(self._folder, mode=_FOLDER_MODE)
        entry = self._load().get(path, _Entry(path=path, mode=self._mode(path)))
        self._save({**self._load(), path: entry.model_copy(update={"unit": unit})})

    def owe_unit(self, path: str, *, owed: bool) -> None:
        """Note whether a unit has still to become what it was; nothing if that was not noted.

        Raises:
            FileError: it is not noted.
        """
        if self.former_unit(path) is not None:
            self._replace(path, unit_owed=owed)

    def take_back(self, path: Path) -> bool:
        """Put an original back, or remove the file if it has none; missing is fine.

        Args:
            path: below the machine's root.

        Returns:
            Whether there was something to do.

        Raises:
            FileError: the path holds what it held before.
        """
        name = f"/{path.relative_to(self._root)}"
        mode = self._mode(name)
        if mode is not None and put_back(self._kept(name), path, mode=mode):
            log.info("Original put back", path=name)
            return True
        return files.remove(path)

    def drop(self, *, but: Collection[str]) -> None:
        """Forget originals of paths that are no longer ours.

        Args:
            but: paths that the applied OSC writes.

        Raises:
            FileError: the ledger cannot be written; calling it again is right.
        """
        entries = self._load()
        gone = [path for path in entries if path not in but]
        if not gone:
            return
        self._save({path: entry for path, entry in entries.items() if path in but})
        for path in gone:
            files.remove(self._kept(path))

    def forget(self) -> None:
        """Know of nothing any more: all that is kept was put back, and what holds it is about to go.

        Raises:
            FileError: the ledger is still there.
        """
        files.remove(self._folder / _LEDGER)
        self._entries = None

    def _replace(self, path: str, **changes: object) -> None:
        """Change an entry, and the file if that makes a difference."""
        entries = self._load()
        if (entry := entries.get(path)) is not None and (new := entry.model_copy(update=changes)) != entry:
            self._save({**entries, path: new})

    def _mode(self, path: str) -> int | None:
        """Return the permissions of an original, None if there is none; where the ledger was damaged, the original itself tells."""
        entry = self._load().get(path)
        if entry is not None or not self._damaged:
            return None if entry is None else entry.mode
        try:
            return stat.S_IMODE(self._kept(path).lstat().st_mode)
        except FileNotFoundError:
            return None

    def _load(self) -> dict[str, _Entry]:
        if self._entries is None:
            path = self._folder / _LEDGER
            content = files.read_optional(path)
            self._damaged = path.with_name(f"{_LEDGER}{DAMAGED}").exists()
            try:
                ledger = _Ledger() if content is None else _Ledger.model_validate_json(content)
            except ValidationError as error:
                log.error("Ledger of originals unreadable", path=str(path), error=str(error)[:200])
                ledger, self._damaged, self._set_aside = _Ledger(), True, True
            self._entries = {entry.path: entry for entry in ledger.entries}
        return self._entries

    def _save(self, entries: dict[str, _Entry]) -> None:
        if self._set_aside:
            set_aside(self._folder / _LEDGER)
            self._set_aside = False
        document = {"entries": [entry.model_dump(exclude_defaults=True) for _path, entry in sorted(entries.items())]}
        files.write_atomic(self._folder / _LEDGER, dump_json(document), mode=_FILE_MODE)
        self._entries = entries

    def _kept(self, path: str) -> Path:
        return self._folder / hashlib.sha256(path.encode()).hexdigest()[:32]

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")
