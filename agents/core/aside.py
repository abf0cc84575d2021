"""Keep a file under a second name while its own name gets other content, and put it back one day.

No bytes are copied where one file system holds both names. As confined as all file work, see `agents.core.files`.
"""

import contextlib
import errno
import os
import shutil
import stat
from pathlib import Path

from agents.core.files import FileError, temporary_name, walk

DAMAGED = ".damaged"
"""What a file that cannot be read has behind its name once it was set aside."""
_NO_ATTRIBUTES = (errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENODATA)
"""How a file system says that it does not hold an extended attribute."""


def set_aside(path: Path) -> Path | None:
    """Move a damaged file out of the way, so that somebody can look at it; an older one goes.

    Returns:
        Where it is now, None if there was none.

    Raises:
        FileError: it cannot be moved.
    """
    try:
        with walk(path) as (directory, name):
            os.rename(name, f"{name}{DAMAGED}", src_dir_fd=directory, dst_dir_fd=directory)
            os.fsync(directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError("damaged file not set aside", path, error) from error
    return path.with_name(f"{path.name}{DAMAGED}")


def keep_aside(path: Path, kept: Path) -> int | None:
    """Keep what is at a path under a second name too, without copying it where one file system holds both.

    Whoever then replaces the file as this module does leaves the kept one as it was. An older one under that name goes.

    Returns:
        The permission bits, None if there is no regular file and no symbolic link at the path.

    Raises:
        FileError: it cannot be kept.
    """
    try:
        with walk(path) as (directory, name):
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
                return None
            with walk(kept, create=True) as (store, kept_name):
                _link(directory, name, store, kept_name)
            return stat.S_IMODE(found.st_mode)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError("file not kept aside", path, error) from error


def put_back(kept: Path, path: Path, *, mode: int) -> bool:
    """Let a path hold again what `keep_aside` kept; that stays kept, so repeating it is harmless.

    Returns:
        False if nothing is kept under that name.

    Raises:
        FileError: the path holds what it held before.
    """
    try:
        with walk(kept) as (store, kept_name), walk(path, create=True) as (directory, name):
            temporary = temporary_name(name)
            _link(store, kept_name, directory, temporary)
            if not stat.S_ISLNK(os.stat(temporary, dir_fd=directory, follow_symlinks=False).st_mode):
                os.chmod(temporary, stat.S_IMODE(mode), dir_fd=directory)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            # Two names of one file: renaming one over the other does nothing.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            os.fsync(directory)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise FileError("file not put back", path, error) from error
    return True


def _link(source_directory: int, source: str, directory: int, name: str) -> None:
    """Give a file a second name, replacing what has it; a copy where that is another file system."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
    try:
        os.link(source, name, src_dir_fd=source_directory, dst_dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EMLINK, errno.EPERM):
            raise
        _copy(source_directory, source, directory, name)


def _copy(source_directory: int, source: str, directory: int, name: str) -> None:
    """Copy a file or a link with its owner, permissions, times and extended attributes."""
    found = os.stat(source, dir_fd=source_directory, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(source, dir_fd=source_directory), name, dir_fd=directory)
        os.chown(name, found.st_uid, found.st_gid, dir_fd=directory, follow_symlinks=False)
        os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=directory, follow_symlinks=False)
        return
    reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source_directory)
    with open(reading, "rb") as original:  # noqa: PTH123 - a descriptor, not a path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(name, flags, 0o600, dir_fd=directory), "wb") as copy:  # noqa: PTH123 - as above
            shutil.copyfileobj(original, copy)
            copy.flush()
            _copy_attributes(original.fileno(), copy.fileno())
            os.fsync(copy.fileno())


def _copy_attributes(source: int, target: int) -> None:
    """Give an open file what belongs to another besides its bytes; what the file system cannot hold is left out."""
    found = os.fstat(source)
    # The owner first: a change of it takes capabilities (an extended attribute) and set-user-ID away.
    os.fchown(target, found.st_uid, found.st_gid)
    try:
        for attribute in os.listxattr(source):
            _copy_attribute(source, target, attribute)
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTES:
            raise
    os.fchmod(target, stat.S_IMODE(found.st_mode))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _copy_attribute(source: int, target: int, attribute: str) -> None:
    try:
        os.setxattr(target, attribute, os.getxattr(source, attribute))
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTES:
            raise
