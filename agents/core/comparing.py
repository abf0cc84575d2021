"""Look at files that others can write without believing their size: compared and hashed in pieces, or not read at all.

A small managed file may have become one of gigabytes, by mistake or because somebody wants us to run out of memory. Where it is
known what it should hold, another size says already that it does not.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from agents.core.files import MOST_READ_BYTES, FileError, NotRegularFile, OpenFile, walk


@contextlib.contextmanager
def opened(path: Path) -> Iterator[OpenFile | None]:
    """Yield a regular file, reached as confined as any write; None if it does not exist.

    Raises:
        FileError: it exists and cannot be read, or is not a regular file; also for what is read of it inside.
    """
    try:
        with contextlib.ExitStack() as stack:
            yield _open(path, stack)
    except OSError as error:
        raise FileError("file not read", path, error) from error


def _open(path: Path, stack: contextlib.ExitStack) -> OpenFile | None:
    try:
        with walk(path) as (directory, name):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return None
    stack.callback(os.close, descriptor)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise NotRegularFile("not a regular file", path)
    return OpenFile(descriptor, found.st_size)


def holds(path: Path, content: bytes) -> bool | None:
    """Tell whether a file holds exactly these bytes, None if it does not exist. One of another size is not read.

    Raises:
        FileError: it exists and cannot be read, or is not a regular file.
    """
    with opened(path) as file:
        if file is None or file.size != len(content):
            return None if file is None else False
        offset = 0
        for piece in file.pieces():
            if content[offset : offset + len(piece)] != piece:
                return False
            offset += len(piece)
        return True


def described(path: Path) -> str:
    """Return, for a message, what a file holds: its SHA-256, or only its size where that is beyond all that we write.

    Raises:
        FileError: it cannot be read.
    """
    with opened(path) as file:
        if file is None:
            return "nothing"
        if file.size > MOST_READ_BYTES:
            return f"{file.size} bytes"
        digest = hashlib.sha256()
        for piece in file.pieces():
            digest.update(piece)
        return digest.hexdigest()
