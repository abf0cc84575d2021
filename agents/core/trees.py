"""Empty or remove a folder, whatever others left in it, and nothing outside of it.

A folder of the kubelet holds what Pods wrote: paths of any depth, names of any bytes, symbolic links to anywhere. So there is
no recursion: a folder that is not empty is renamed to the top, where it is emptied in turn. And nothing is followed: links
are removed, and the kernel refuses to rename or remove a mount point, so a file system that is still mounted below is not
entered; it is reported.
"""

import errno
import os
import stat
from collections.abc import Collection
from itertools import count
from pathlib import Path

from agents.core import files
from agents.core.files import FileError

_MOST_NAMED = 5


class NotEmptied(FileError):
    """Something could not be removed; `left` names the first few things and says how many there are."""

    def __init__(self, path: Path, problems: Collection[str]) -> None:
        super().__init__("folder not emptied", path)
        named = list(problems)[:_MOST_NAMED]
        self.fields["left"] = "; ".join(named) + (
            f" and {len(problems) - len(named)} more" if len(problems) > len(named) else ""
        )


def remove_content(folder: Path, *, keep: Collection[str] = ()) -> int:
    """Remove everything in a folder but the folder itself; a missing folder is fine. Blocks; safe to repeat.

    Args:
        folder: absolute and clean.
        keep: names directly in it that stay.

    Returns:
        How many entries directly in it were removed.

    Raises:
        NotEmptied: something is left; everything else was removed.
        FileError: the folder cannot be opened.
    """
    try:
        top = files.open_directory(folder)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise FileError("folder not opened", folder, error) from error
    try:
        emptying = _Emptying(top)
        removed = sum(emptying.remove(name) for name in _names(top) if name not in keep)
        os.fsync(top)
    finally:
        os.close(top)
    if emptying.problems:
        raise NotEmptied(folder, emptying.problems)
    return removed


def remove(path: Path) -> bool:
    """Remove a folder with everything in it, or a file, or a link itself; missing is fine. Blocks; safe to repeat.

    Args:
        path: absolute and clean.

    Returns:
        Whether there was something to remove.

    Raises:
        NotEmptied: something in the folder is left; everything else was removed.
        FileError: it cannot be removed.
    """
    try:
        with files.walk(path) as (directory, name):
            if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                remove_content(path)
                os.rmdir(name, dir_fd=directory)
            else:
                os.unlink(name, dir_fd=directory)
            os.fsync(directory)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise FileError("not removed", path, error) from error
    return True


class _Emptying:
    def __init__(self, top: int) -> None:
        self.problems: list[str] = []
        self._top = top
        self._numbers = count()

    def remove(self, name: str) -> bool:
        """Remove one entry of the top, and what comes up from below it."""
        before = len(self.problems)
        pending = [(name, name)]
        while pending:
            entry, shown = pending.pop()
            pending += self._remove_one(entry, shown)
        return len(self.problems) == before

    def _remove_one(self, name: str, shown: str) -> list[tuple[str, str]]:
        """Remove an entry of the top; returns the folders that came up from it, and the entry itself if it waits for them."""
        try:
            if not stat.S_ISDIR(os.stat(name, dir_fd=self._top, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=self._top)
                return []
            if self._is_removed(name, self._top):
                return []
            # Renaming is what tells a mount point, before anything in it is looked at.
            up = self._bring_up(name, self._top)
            return self._empty(up, shown)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._note(shown, error)
            return []

    def _empty(self, name: str, shown: str) -> list[tuple[str, str]]:
        """Remove what is in a folder of the top; its folders come up beside it."""
        came_up: list[tuple[str, str]] = []
        before = len(self.problems)
        inside = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._top)
        try:
            for child in _names(inside):
                try:
                    is_folder = stat.S_ISDIR(os.stat(child, dir_fd=inside, follow_symlinks=False).st_mode)
                    if not is_folder:
                        os.unlink(child, dir_fd=inside)
                    elif not self._is_removed(child, inside):
                        came_up.append((self._bring_up(child, inside), f"{shown}/{child}"))
                except OSError as error:
                    self._note(f"{shown}/{child}", error)
        finally:
            os.close(inside)
        if len(self.problems) == before:
            os.rmdir(name, dir_fd=self._top)
        return came_up

    def _is_removed(self, name: str, folder: int) -> bool:
        """Remove a folder if it is empty."""
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        return True

    def _bring_up(self, name: str, folder: int) -> str:
        """Rename a folder to an unused name in the top and return that."""
        while True:
            target = f".removed-{next(self._numbers)}"
            try:
                os.stat(target, dir_fd=self._top, follow_symlinks=False)
            except FileNotFoundError:
                os.rename(name, target, src_dir_fd=folder, dst_dir_fd=self._top)
                return target

    def _note(self, shown: str, error: OSError) -> None:
        problem = "something is mounted there" if error.errno == errno.EBUSY else os.strerror(error.errno or 0)
        self.problems.append(f"{shown}: {problem}")


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]
