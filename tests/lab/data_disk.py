"""Disks that a machine can format: loop devices of the lab, shown to the machine as if they were attached to it.

A machine sees the host's sysfs, and so the host's disks. Before one of ours is attached, a folder of our own is mounted
over the machine's `/sys/class/block`: from then on the machine knows no other device, and only for ours is there a device
node. Nothing that this lab did not create itself can be attached.

Where the kernel knows no quotas, ext4 with the feature cannot be mounted for writing. There, `without_quotas` brings a `mount`
that notes what it was asked for and what the file system then looked like, takes the wish out of both, and mounts.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab import disks
from tests.lab.commands import run
from tests.lab.errors import LabError
from tests.lab.machine import Machine
from tests.lab.state import Ledger

_SYSFS = "/sys/class/block"
_TOOLS = "/run/lab-tools"
MOUNT_LOG = "/run/lab-mounts.log"
TOOLS_PATH = f"{_TOOLS}:/opt/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_MOUNT = f"""\
#!/bin/sh
# This kernel has no quotas: note what was asked for, take the wish out of file system and options, call the real mount.
options=; node=; previous=
for argument; do
  case "$previous" in -o) options=$argument ;; esac
  case "$argument" in /dev/*) node=$argument ;; esac
  previous=$argument
done
echo "mount $* | $(/usr/sbin/dumpe2fs -h "$node" 2>/dev/null | sed -n -e 's/^Filesystem features: *//p' -e 's/^\\(User\\|Group\\|Project\\) quota inode:.*/\\1-quota/p' | tr '\\n' ' ')" >> {MOUNT_LOG}
/usr/sbin/tune2fs -O ^quota,^project "$node" > /dev/null || exit 1
for argument; do
  shift
  [ "$argument" = "$options" ] && argument=$(echo "$argument" | sed -e 's/,prjquota//')
  set -- "$@" "$argument"
done
exec /usr/bin/mount "$@"
"""


@dataclass(frozen=True, slots=True)
class DataDisk:
    """A disk of a machine.

    Attributes:
        name: as the machine knows it, for example `sdb`.
        device: the loop device, on the host.
        file: what lies behind it.
        size_bytes: its size.
    """

    name: str
    device: Path
    file: Path
    size_bytes: int

    @property
    def node(self) -> str:
        """Its device node in the machine."""
        return f"/dev/{self.name}"

    @property
    def number(self) -> str:
        """`major:minor`."""
        found = self.device.stat().st_rdev
        return f"{os.major(found)}:{os.minor(found)}"


@contextmanager
def data_disk(machine: Machine, name: str = "sdb", *, size_bytes: int = 64 * 1024 * 1024) -> Iterator[DataDisk]:
    """Create an empty disk, attach it to a machine, and remove it after the block."""
    ledger = machine.ledger
    file = ledger.directory / f"{machine.name}-{name}.disk"
    device = disks.create_empty_loop(ledger, file, size_bytes, owner=machine.name)
    disk = DataDisk(name, device, file, size_bytes)
    try:
        attach(machine, disk)
        yield disk
    finally:
        if machine.running():
            machine.run(["sh", "-c", f"while umount --lazy {disk.node} 2>/dev/null; do :; done"])
        disks.remove_loop(file)


def attach(machine: Machine, disk: DataDisk) -> None:
    """Show a disk to a machine; again after each of its boots.

    Raises:
        LabError: the lab did not create this device.
    """
    require_own(machine.ledger, disk.device)
    machine.run(["sh", "-c", f"mountpoint -q {_SYSFS} || mount -t tmpfs -o mode=755 tmpfs {_SYSFS}"])
    major, minor = disk.number.split(":")
    folder = f"{_SYSFS}/{disk.name}"
    for path, text in {"size": str(disk.size_bytes // 512), "ro": "0", "dev": disk.number}.items():
        machine.write(f"{folder}/{path}", f"{text}\n".encode())
    machine.run(["mkdir", "-p", f"{folder}/holders"])
    machine.run(["sh", "-c", f"[ -b {disk.node} ] || mknod -m 600 {disk.node} b {major} {minor}"])


def require_own(ledger: Ledger, device: Path) -> None:
    """Refuse a device that this lab did not create.

    Raises:
        LabError: it is no loop device, or the file behind it is not in the ledger.
    """
    done = subprocess.run(
        ["losetup", "--noheadings", "--output", "BACK-FILE", str(device)], check=False, capture_output=True, text=True
    )
    behind = done.stdout.strip()
    if done.returncode != 0 or behind not in {entry["file"] for entry in ledger.entries("loop")}:
        raise LabError(f"{device} was not created by this lab: {behind or 'no loop device'}")


def kernel_has_quotas(folder: Path) -> bool:
    """Find out by trying whether ext4 with quotas can be mounted; needs a scratch folder."""
    file, point = folder / "quota.ext4", folder / "quota"
    with file.open("wb") as image:
        image.truncate(16 * 1024 * 1024)
    run("mkfs.ext4", "-q", "-O", "quota", "-E", "quotatype=usrquota:grpquota:prjquota", str(file))
    point.mkdir()
    inside = f"mount -o loop,prjquota {file} {point} && umount {point}"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", inside], check=False, capture_output=True)
    point.rmdir()
    file.unlink()
    return done.returncode == 0


def install_tools(machine: Machine, tools: Mapping[str, str]) -> None:
    """Put scripts before the machine's programs; they are found with `TOOLS_PATH`."""
    for name, text in tools.items():
        machine.write(f"{_TOOLS}/{name}", text.encode(), 0o755)


def without_quotas(machine: Machine) -> None:
    """Install the `mount` for kernels without quotas."""
    install_tools(machine, {"mount": _MOUNT})
