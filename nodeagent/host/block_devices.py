"""Block devices of this machine: which there are, from sysfs, and what is on them, from `blkid`.

sysfs and not `lsblk`: it is the kernel's own interface, needs no program and no udev, and does not differ between
versions (`lsblk` writes numbers as strings before util-linux 2.33 and knows `MOUNTPOINTS` from 2.37 on). What is on a
device is asked of `blkid --probe`, which reads the device itself instead of a cache. `blkid`, `mount` and `umount`
(util-linux), `mkfs.ext4` and `cp` are what Gardener's own script runs, so every machine image that supports data volumes has
them; `tune2fs` is in the same package as `mkfs.ext4`.

Source: gardener pkg/nodeagent/bootstrap/templates/scripts/format-kubelet-data-volume.tpl.sh (contract 8.3).
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from agents.core import process
from agents.core.errors import RetriableError
from agents.core.logging import get_logger

log = get_logger(__name__)

PROBE_DEADLINE = timedelta(seconds=10)
_SECTOR_BYTES = 512  # of sysfs, whatever the device's own is
_NOTHING_FOUND = 2
_AMBIVALENT = 8
# Loop, RAM and compressed RAM devices, optical drives and floppies are never a disk that somebody attached for data.
_NO_DISKS = re.compile(r"^(loop|ram|zram|sr|fd|mtdblock)\d")
_SCSI_DISK = "0"


class DeviceUnreadable(RetriableError):
    """What is on a device cannot be found out."""


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """A disk, a partition, or something that is made of them.

    Attributes:
        name: the kernel's name, such as `sdb` or `nvme1n1`.
        number: `major:minor`.
        node: device node.
        size_bytes: its size.
        whole_disk: whether it is a disk, and neither a part of one nor made of others.
        read_only: whether the kernel refuses writes.
        holders: what is made of it (LVM, RAID, encryption, multipath), by name.
        partitions: numbers of its partitions, `major:minor`.
    """

    name: str
    number: str
    node: Path
    size_bytes: int
    whole_disk: bool = True
    read_only: bool = False
    holders: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Signatures:
    """What was found on a device.

    Attributes:
        kind: of the file system, RAID, swap or whatever else is there; empty if nothing is.
        label: of the file system.
        partition_table: its kind; empty if there is none.
        ambivalent: more than one thing is there.
    """

    kind: str = ""
    label: str = ""
    partition_table: str = ""
    ambivalent: bool = False

    def __bool__(self) -> bool:
        return bool(self.kind or self.label or self.partition_table or self.ambivalent)

    @property
    def description(self) -> str:
        """What is there, in words."""
        if self.ambivalent:
            return "several signatures"
        named = f"{self.kind} labelled {self.label}" if self.label else self.kind
        return f"partition table {self.partition_table}" if self.partition_table else named or "nothing"


class BlockDevices(Protocol):
    """The block devices of a machine."""

    def list(self) -> Sequence[BlockDevice]:
        """Return all that have a size and a device node, in the order of their numbers."""
        ...

    async def probe(self, device: BlockDevice) -> Signatures:
        """Return what is on a device, read from it now.

        Raises:
            AgentError: it cannot be read.
        """
        ...

    def in_use(self, device: BlockDevice) -> bool:
        """Tell whether somebody uses it for himself: mounted in whatever namespace, swap, or a part of something else.

        Raises:
            AgentError: that cannot be found out.
        """
        ...


class KernelBlockDevices:
    """The real ones.

    Args:
        root: where the machine's file system starts.
        number_of: returns `major:minor` of a device node, None if it is no block device's.
    """

    def __init__(self, *, root: Path = Path("/"), number_of: Callable[[Path], str | None] | None = None) -> None:
        self._entries = root / "sys/class/block"
        self._nodes = root / "dev"
        self._number_of = number_of or _number_of

    def list(self) -> Sequence[BlockDevice]:
        """Return all that have a size and a device node, in the order of their numbers."""
        found = []
        for entry in self._entries.iterdir() if self._entries.is_dir() else ():
            try:
                device = self._read(entry)
            except (OSError, ValueError) as error:  # it went away meanwhile
                log.debug("Block device not looked at", device=entry.name, error=error)
                continue
            if device is not None:
                found.append(device)
        return sorted(found, key=lambda device: [int(part) for part in device.number.split(":")])

    async def probe(self, device: BlockDevice) -> Signatures:
        """Return what is on a device, read from it now."""
        command = ["blkid", "--probe", "--output", "export", str(device.node)]
        done = await process.run(command, deadline=PROBE_DEADLINE, check=False)
        if done.exit_code == _AMBIVALENT:
            return Signatures(ambivalent=True)
        if done.exit_code not in (0, _NOTHING_FOUND):
            raise DeviceUnreadable("device cannot be probed", device=str(device.node), output=done.text())
        lines = done.stdout.decode(errors="replace").splitlines()
        values = dict(line.split("=", 1) for line in lines if "=" in line)
        return _signatures(values)

    def in_use(self, device: BlockDevice) -> bool:
        """Tell whether the kernel refuses the device to us alone."""
        try:
            os.close(os.open(device.node, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError as error:
            if error.errno == errno.EBUSY:
                return True
            raise DeviceUnreadable(
                "device cannot be opened", device=str(device.node), problem=os.strerror(error.errno or 0)
            ) from error
        return False

    def _read(self, entry: Path) -> BlockDevice | None:
        """Read a folder of /sys/class/block; None for what has no size or no device node."""
        size = int(_text(entry / "size")) * _SECTOR_BYTES
        number = _text(entry / "dev")
        node = self._nodes / entry.name.replace("!", "/")
        # Another device's node may have been left under this one's name.
        if size == 0 or self._number_of(node) != number:
            return None
        made_of_others = any((entry / part).exists() for part in ("dm", "md", "loop", "partition"))
        kind = _optional_text(entry / "device/type")  # a number for SCSI devices; others say what they like
        hidden = _optional_text(entry / "hidden") or "0"
        partitions = [part for part in entry.iterdir() if (part / "partition").exists()]
        return BlockDevice(
            name=entry.name,
            number=number,
            node=node,
            size_bytes=size,
            whole_disk=not (made_of_others or _NO_DISKS.match(entry.name) or hidden != "0")
            and not (kind.isdigit() and kind != _SCSI_DISK),
            read_only=_text(entry / "ro") != "0",
            holders=tuple(sorted(path.name for path in _listed(entry / "holders"))),
            partitions=tuple(_text(part / "dev") for part in partitions),
        )


def _number_of(node: Path) -> str | None:
    try:
        found = node.stat()
    except FileNotFoundError:
        return None
    return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}" if stat.S_ISBLK(found.st_mode) else None


def _signatures(values: Mapping[str, str]) -> Signatures:
    return Signatures(values.get("TYPE", ""), values.get("LABEL", ""), values.get("PTTYPE", ""))


def _listed(folder: Path) -> Sequence[Path]:
    return list(folder.iterdir()) if folder.is_dir() else ()


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8").strip()


def _optional_text(file: Path) -> str:
    try:
        return _text(file)
    except OSError:
        return ""
