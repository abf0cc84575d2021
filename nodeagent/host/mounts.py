r"""What is mounted on this machine, as the kernel tells it: /proc/self/mountinfo, with its escapes decoded.

A path with a blank, a tabulator, a line feed, a backslash or a `#` is written with octal escapes there (`\040`); taken
literally it names nothing (W41).
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from agents.core import process
from agents.core.errors import AgentError, RetriableError
from agents.core.logging import get_logger

log = get_logger(__name__)

MOUNT_TABLE = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_UNMOUNT_DEADLINE = timedelta(seconds=30)
_DETACH_DEADLINE = timedelta(seconds=10)


class StillMounted(RetriableError):
    """Something cannot be unmounted."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table.

    Attributes:
        point: where it is mounted.
        device: `major:minor` of the file system.
        root: which part of the file system is to be seen there; `/` unless it is a bind mount.
        kind: type of the file system.
        source: what was mounted, as whoever mounted it said.
    """

    point: Path
    device: str
    root: str
    kind: str
    source: str


def read_mounts(table: Path = MOUNT_TABLE) -> list[Mount]:
    """Return what is mounted in our mount namespace, in the order in which it was mounted."""
    return [mount for line in table.read_bytes().splitlines() if (mount := _parse(line)) is not None]


def below(mounts: Sequence[Mount], folder: Path) -> list[Mount]:
    """Return the mounts below a folder, not the one on the folder itself: deepest first, and of two on one point the upper first."""
    found = [mount for mount in reversed(mounts) if folder in mount.point.parents]
    return sorted(found, key=lambda mount: -len(mount.point.parts))


def on(mounts: Iterable[Mount], point: Path) -> Mount | None:
    """Return what is mounted exactly there; of several the uppermost."""
    found = [mount for mount in mounts if mount.point == point]
    return found[-1] if found else None


async def unmount(point: Path) -> None:
    """Unmount the uppermost mount of a point; what is busy or does not answer is detached from the tree.

    After a detachment nothing below the point belongs to the file system any more, so that whoever deletes there does not
    delete in it.

    Raises:
        StillMounted: neither worked.
    """
    try:
        await process.run(["umount", "--no-canonicalize", str(point)], deadline=_UNMOUNT_DEADLINE)
    except AgentError as error:
        log.info("Not unmounted, detaching", path=str(point), error=error)
        try:
            await process.run(["umount", "--no-canonicalize", "--lazy", str(point)], deadline=_DETACH_DEADLINE)
        except AgentError as second:
            raise StillMounted("cannot be unmounted", path=str(point), problem=str(second)) from second


def _parse(line: bytes) -> Mount | None:
    """Read `id parent major:minor root point options [tags] - kind source options` (proc(5))."""
    left, separator, right = line.partition(b" - ")
    fields, rest = left.split(b" "), right.split(b" ")
    if not separator or len(fields) < 5 or len(rest) < 2:
        return None
    device, root, point = map(_decode, fields[2:5])
    return Mount(Path(point), device, root, _decode(rest[0]), _decode(rest[1]))


def _decode(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda found: bytes([int(found[1], 8)]), field))
