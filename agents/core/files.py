"""Crash-consistent and confined file work; every write to a machine goes through here.

*Crash-consistent*: content goes to `.<name>.tmp` beside the target, gets its mode and owner, is fsynced and renamed, and
the directory is fsynced. Whoever looks at any moment, also after a power cut, sees the old file or the new one. Many
files may share one pass of fsyncs (`Batch`).

*Confined*: a path is walked component by component with directory descriptors. A symbolic link on the way is followed
only if the link and its directory belong to root (or to us) and only the owner may write that directory; the last
component is replaced and never followed. So nobody but root can make us write elsewhere.

A rename gives a new inode: a process that holds the old file by a bind mount of the file itself does not see it.

Source: gardener pkg/nodeagent/files/files.go; deviations W2, W3 and W23 of contract section 9.
"""

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from agents.core.errors import RetriableError

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40  # as the kernel's own limit
_LONGEST_NAME = 255
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
PERMISSIONS = 0o777
DIRECTORY_MODE = 0o755
MOST_READ_BYTES = 64 * 1024 * 1024
"""What a file may hold that is read as a whole: four times the largest OperatingSystemConfig."""
_PIECE_BYTES = 128 * 1024
"""As `cp` has it. With a MiB ext4 asks for as much memory at a time, and in a virtual machine the host may first have to find that: 3 ms each."""


class Change(IntEnum):
    """What a write has to change; NONE is false."""

    NONE = 0
    MODE = 1
    CONTENT = 2


class FileError(RetriableError):
    """A file operation failed; `path` names the file, `problem` the operating system's reason."""

    def __init__(self, message: str, path: Path, error: OSError | None = None) -> None:
        problem = os.strerror(error.errno) if error is not None and error.errno else None
        super().__init__(message, path=str(path), **({"problem": problem} if problem else {}))  # type: ignore[arg-type]
        self.path = path
        self.errno = error.errno if error is not None else None


class UnsafePath(FileError):
    """A symbolic link on the way could have been placed by somebody other than root."""


class NotRegularFile(FileError):
    """The target exists and is a directory, a device, a socket or a pipe."""


class TooLarge(FileError):
    """The file holds more than its reader takes; fields: `path`, and in bytes `size` and `limit`."""

    def __init__(self, path: Path, *, size: int, limit: int) -> None:
        super().__init__("file too large to be read", path)
        self.fields |= {"size": size, "limit": limit}


def write_atomic(path: Path, content: bytes, *, mode: int, sync: bool = True) -> bool:
    """Make the file hold exactly this content and mode.

    Missing parent directories are created with 0755. A file that already is as wanted is not touched.

    Args:
        path: absolute and clean.
        content: all bytes of the file.
        mode: permission bits; set explicitly, so the umask has no say.
        sync: False leaves out the fsyncs, for files that may lag behind after a power cut but must never be torn.

    Returns:
        Whether anything changed on disk.

    Raises:
        FileError: with the path; the old content is intact and no temporary file is left.
    """
    with Batch(sync=sync) as batch:
        change = batch.stage(path, content, mode=mode)
        for error in batch.commit().values():
            raise error
    return bool(change)


def read_optional(path: Path, *, limit: int = MOST_READ_BYTES) -> bytes | None:
    """Return the file's content, None if it does not exist. What it should hold is better compared with `comparing.holds`.

    Raises:
        FileError: it exists and cannot be read, is not a regular file, or holds more than `limit` bytes.
    """
    try:
        with walk(path) as (directory, name):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
            return _content(descriptor, path, limit)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError("file not read", path, error) from error


def read_mounted(path: Path, *, limit: int = MOST_READ_BYTES) -> bytes | None:
    """Return the content of a file in a volume of a Pod, or behind a link of the operating system or the kubelet; None if it does not exist.

    Names in such a volume are links into a folder that the kubelet exchanges as a whole, and the volume's folder may be writable for all.
    So links are followed, wherever they lead: the volume belongs to whoever gives us the content.

    Raises:
        FileError: it exists and cannot be read, is not a regular file, or holds more than `limit` bytes.
    """
    try:
        return _content(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), path, limit)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError("file not read", path, error) from error


def _content(descriptor: int, path: Path, limit: int) -> bytes:
    """Return the content of an open file and close it."""
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotRegularFile("not a regular file", path)
        size, content = found.st_size, b""
        if size <= limit:
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(size + 1)
                if len(content) > size:  # it grows, or the kernel makes it up
                    content += file.read(limit + 1 - size)
        if max(size, len(content)) > limit:
            raise TooLarge(path, size=max(size, len(content)), limit=limit)
        return content
    finally:
        os.close(descriptor)


def remove(path: Path) -> bool:
    """Remove a file or a symbolic link itself; missing is fine.

    Returns:
        Whether there was something to remove.

    Raises:
        FileError: it is a directory or cannot be removed.
    """
    try:
        with walk(path) as (directory, name):
            os.unlink(name, dir_fd=directory)
            os.fsync(directory)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise FileError("file not removed", path, error) from error
    return True


def remove_directory_if_empty(path: Path) -> bool:
    """Remove a directory unless something is in it; missing is fine. Returns whether it was removed."""
    try:
        with walk(path) as (directory, name):
            os.rmdir(name, dir_fd=directory)
            os.fsync(directory)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise FileError("directory not removed", path, error) from error
    return True


def ensure_directory(path: Path, *, mode: int = DIRECTORY_MODE) -> None:
    """Create a directory and its parents; an existing one gets the mode, parents are created with 0755."""
    try:
        with walk(path / "_", create=True) as (directory, _name):
            if stat.S_IMODE(os.fstat(directory).st_mode) != mode:
                os.fchmod(directory, mode)
    except OSError as error:
        raise FileError("directory not created", path, error) from error


def open_directory(path: Path) -> int:
    """Return a descriptor of a directory that exists, reached as confined as any write; the caller closes it.

    Raises:
        OSError: it is missing, or no directory.
        UnsafePath: somebody else could have placed a link on the way.
    """
    with walk(path / "_") as (directory, _name):
        return os.dup(directory)


def temporary_name(name: str) -> str:
    """Return the name under which a file is written before it is renamed to `name`."""
    plain = f".{name}.tmp"
    if len(os.fsencode(plain)) <= _LONGEST_NAME:
        return plain
    return f".{hashlib.sha256(os.fsencode(name)).hexdigest()[:32]}.tmp"


def remove_stale_temporaries(paths: Iterable[Path]) -> list[Path]:
    """Remove what a kill may have left beside each of these files. Returns what was removed."""
    return [stale for path in paths if remove(stale := path.with_name(temporary_name(path.name)))]


@dataclass(frozen=True, slots=True)
class OpenFile:
    """Content that lies in an open regular file: read in pieces, so it is never in memory as a whole.

    Attributes:
        descriptor: stays the caller's; its position is not used.
        size: in bytes.
        proceed: called before each piece; what it raises ends the work and leaves nothing behind.
    """

    descriptor: int
    size: int
    proceed: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return self.size

    def pieces(self) -> Iterator[bytes]:
        """Yield the content.

        Raises:
            OSError: it cannot be read, or became shorter meanwhile.
        """
        offset = 0
        while offset < self.size:
            self.proceed()
            piece = os.pread(self.descriptor, min(_PIECE_BYTES, self.size - offset), offset)
            if not piece:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            offset += len(piece)
            yield piece


@dataclass(slots=True)
class _Staged:
    path: Path
    directory: int
    name: str
    temporary: str
    descriptor: int
    flushing: bool = False


class Batch:
    """Several atomic writes that share one pass of fsyncs.

    A context manager: what was staged and not committed is removed when it ends. Errors stay with their file: `stage`
    raises for the one, `commit` returns them by path, and the other files are written.
    """

    def __init__(self, *, sync: bool = True) -> None:
        self._sync = sync
        self._staged: dict[Path, _Staged] = {}
        self._directories: dict[Path, int] = {}

    def __enter__(self) -> "Batch":
        return self

    def __exit__(self, *_exception: object) -> None:
        for staged in self._staged.values():
            _discard(staged)
        self._staged.clear()
        for directory in self._directories.values():
            os.close(directory)
        self._directories.clear()

    def __len__(self) -> int:
        return len(self._staged)

    def stage(self, path: Path, content: bytes | OpenFile, *, mode: int) -> Change:
        """Write the temporary file, or nothing if the target already is as wanted; a wrong mode alone is set at once."""
        mode &= PERMISSIONS
        try:
            directory = self._directory(path)
            change = _compare(path, directory, content, mode)
            if change is Change.MODE:
                os.chmod(path.name, mode, dir_fd=directory)
            if change is not Change.CONTENT:
                return change
            if (earlier := self._staged.pop(path, None)) is not None:
                _discard(earlier)
            self._staged[path] = _write_temporary(path, directory, content, mode)
        except OSError as error:
            raise FileError("file not written", path, error) from error
        return Change.CONTENT

    def commit(self) -> Mapping[Path, FileError]:
        """Sync, rename and sync the directories. Returns the files that failed; their old content is intact."""
        failed: dict[Path, FileError] = {}
        if self._sync:
            for staged in self._staged.values():
                # Starts writing all files back, so that the fsyncs below share one journal commit.
                if not staged.flushing:
                    _start_writing_back(staged.descriptor)
        renamed: set[int] = set()
        for staged in self._staged.values():
            try:
                if self._sync:
                    os.fsync(staged.descriptor)
            except OSError as error:
                failed[staged.path] = FileError("file not written", staged.path, error)
        for staged in self._staged.values():
            try:
                if staged.path not in failed:
                    os.rename(staged.temporary, staged.name, src_dir_fd=staged.directory, dst_dir_fd=staged.directory)
                    renamed.add(staged.directory)
            except OSError as error:
                failed[staged.path] = FileError("file not written", staged.path, error)
        if self._sync:
            failed.update(self._sync_directories(renamed))
        for staged in self._staged.values():
            if staged.path in failed:
                _discard(staged)
            else:
                os.close(staged.descriptor)
        self._staged.clear()
        return failed

    def _sync_directories(self, renamed: set[int]) -> dict[Path, FileError]:
        failed = {}
        for directory in renamed:
            try:
                os.fsync(directory)
            except OSError as error:
                for staged in self._staged.values():
                    if staged.directory == directory:
                        failed[staged.path] = FileError("directory not synced", staged.path, error)
        return failed

    def _directory(self, path: Path) -> int:
        if path.parent not in self._directories:
            with walk(path, create=True) as (directory, _name):
                self._directories[path.parent] = os.dup(directory)
        return self._directories[path.parent]


def _write_temporary(path: Path, directory: int, content: bytes | OpenFile, mode: int) -> _Staged:
    temporary = temporary_name(path.name)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    staged = _Staged(path, directory, path.name, temporary, os.open(temporary, flags, 0o600, dir_fd=directory))
    # What is large is written back while it is copied: of 90 MB the fsync then takes a third of the time.
    staged.flushing = isinstance(content, OpenFile)
    try:
        os.fchown(staged.descriptor, os.geteuid(), os.getegid())
        os.fchmod(staged.descriptor, mode)
        offset = 0
        for piece in _pieces(content):
            view = memoryview(piece)
            while view:
                view = view[os.write(staged.descriptor, view) :]
            if staged.flushing:
                _start_writing_back(staged.descriptor, offset, len(piece))
            offset += len(piece)
    except BaseException:
        _discard(staged)
        raise
    return staged


def _start_writing_back(descriptor: int, offset: int = 0, length: int = 0) -> None:
    """Tell the kernel to write now; it drops from memory only what is on the disk already, so each byte is named once."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)


def _discard(staged: _Staged) -> None:
    os.close(staged.descriptor)
    with contextlib.suppress(OSError):
        os.unlink(staged.temporary, dir_fd=staged.directory)


def _pieces(content: bytes | OpenFile) -> Iterable[bytes]:
    return (content,) if isinstance(content, bytes) else content.pieces()


def _compare(path: Path, directory: int, content: bytes | OpenFile, mode: int) -> Change:
    """Return what would have to change for the target to be as wanted.

    Raises:
        NotRegularFile: it is a directory, a device, a socket or a pipe.
    """
    try:
        found = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return Change.CONTENT
    if stat.S_ISLNK(found.st_mode):
        return Change.CONTENT
    if not stat.S_ISREG(found.st_mode):
        raise NotRegularFile("target is not a regular file", path)
    if found.st_size != len(content) or (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
        return Change.CONTENT
    descriptor = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        if any(file.read(len(piece)) != piece for piece in _pieces(content)):
            return Change.CONTENT
    return Change.NONE if stat.S_IMODE(found.st_mode) == mode else Change.MODE


class walk:  # noqa: N801 - used like a function
    """Context manager that yields a descriptor of the path's directory, and the last component."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if not path.is_absolute() or ".." in path.parts or not path.name:
            raise UnsafePath("path is not absolute and clean", path)
        self._path = path
        self._create = create

    def __enter__(self) -> tuple[int, str]:
        pending = list(self._path.parts[1:-1])[::-1]
        links = 0
        self._descriptor = os.open("/", _OPEN_DIRECTORY)
        try:
            while pending:
                component = pending.pop()
                target = self._step(component)
                if target is None:
                    continue
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                if target.startswith("/"):
                    self._replace(os.open("/", _OPEN_DIRECTORY))
                pending.extend(part for part in reversed(target.split("/")) if part not in ("", "."))
        except BaseException:
            os.close(self._descriptor)
            raise
        return self._descriptor, self._path.name

    def __exit__(self, *_exception: object) -> None:
        os.close(self._descriptor)

    def _replace(self, descriptor: int) -> None:
        os.close(self._descriptor)
        self._descriptor = descriptor

    def _step(self, component: str) -> str | None:
        """Enter a directory, created if it may be, or return the target of a link that may be followed."""
        try:
            self._replace(os.open(component, _OPEN_DIRECTORY, dir_fd=self._descriptor))
        except FileNotFoundError:
            if not self._create:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(component, DIRECTORY_MODE, dir_fd=self._descriptor)
            parent = self._descriptor
            made = os.open(component, _OPEN_DIRECTORY, dir_fd=parent)
            os.fchmod(made, DIRECTORY_MODE)
            os.fsync(parent)
            self._replace(made)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            found = os.stat(component, dir_fd=self._descriptor, follow_symlinks=False)
            if not stat.S_ISLNK(found.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error
            self._refuse_foreign_link(found)
            return os.readlink(component, dir_fd=self._descriptor)
        return None

    def _refuse_foreign_link(self, link: os.stat_result) -> None:
        folder = os.fstat(self._descriptor)
        trusted = {0, os.geteuid()}
        if link.st_uid not in trusted or folder.st_uid not in trusted or folder.st_mode & _WRITABLE_BY_OTHERS:
            raise UnsafePath("symbolic link on the way is not root's alone", self._path)
