"""Whether a file system is full: then starting a program anew mends nothing."""

import os
from collections.abc import Iterable
from pathlib import Path

FULL_BYTES = 4 * 1024 * 1024
FULL_INODES = 16


def full(paths: Iterable[Path]) -> Path | None:
    """Return the first path whose file system has no room left for root; blocks on the disk.

    A path that does not exist is passed over, and so is a file system that counts no inodes.
    """
    for path in paths:
        try:
            found = os.statvfs(path)
        except OSError:
            continue
        if found.f_blocks and found.f_bfree * found.f_frsize < FULL_BYTES:
            return path
        if found.f_files and found.f_ffree < FULL_INODES:
            return path
    return None
