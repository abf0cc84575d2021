"""Open a file of a mounted image, never anything outside it.

An image's paths mean what they would mean in a container of it: symbolic links, absolute ones too, are followed below the
mount, and `..` of a link ends at its root. The path that is asked for itself must not contain `..`. Only regular files are
opened, so an image cannot make us read a device or wait on a pipe.

Walked with directory descriptors, because openat2(RESOLVE_IN_ROOT) cannot be called from Python without ctypes. A walk
would be racy in a tree that somebody changes; this one is a read-only view.

Deviates from gardener pkg/nodeagent/registry/containerd_extractor.go: contract 9, W8.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from agents.core.errors import RetriableError

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_LINKS = 40  # as the kernel's own limit


class ImageFileError(RetriableError):
    """A file of an image cannot be used; fields: `file` and `problem`."""


class NotInImage(ImageFileError):
    """The image has no such file."""


@contextlib.contextmanager
def open_file(root: Path, path: str) -> Iterator[int]:
    """Yield a descriptor of a regular file below a mount.

    Args:
        root: where the image is mounted.
        path: in the image; absolute, or relative to its root.

    Raises:
        NotInImage: there is no such file.
        ImageFileError: the path contains `..`, ends at something that is no regular file, or cannot be read.
    """
    if ".." in path.split("/") or "\0" in path:
        raise _unusable(path, "path leads out of the image")
    try:
        descriptor = _open(root, path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotInImage("file not in image", file=path) from error
    except OSError as error:
        raise _unusable(path, os.strerror(error.errno or 0)) from error
    if descriptor is None:
        raise _unusable(path, "not a regular file")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _unusable(path: str, problem: str) -> ImageFileError:
    return ImageFileError("file in image not usable", file=path, problem=problem)


def _open(root: Path, path: str) -> int | None:
    """Walk down from the root, each entered directory open so that `..` is the way back; None if no regular file is met."""
    pending = _parts(path)[::-1]
    with contextlib.ExitStack() as stack:
        entered = [_enter(stack, root, None)]
        links = 0
        while pending:
            name = pending.pop()
            if name == "..":
                if len(entered) > 1:
                    entered.pop()
                continue
            found = os.stat(name, dir_fd=entered[-1], follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.readlink(name, dir_fd=entered[-1])
                if target.startswith("/"):
                    del entered[1:]
                pending.extend(_parts(target)[::-1])
            elif pending:
                entered.append(_enter(stack, name, entered[-1]))
            elif stat.S_ISREG(found.st_mode):
                return os.open(name, _OPEN_FILE, dir_fd=entered[-1])
            else:
                return None
    return None


def _enter(stack: contextlib.ExitStack, path: str | Path, directory: int | None) -> int:
    descriptor = os.open(path, _OPEN_DIRECTORY, dir_fd=directory)
    stack.callback(os.close, descriptor)
    return descriptor


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
