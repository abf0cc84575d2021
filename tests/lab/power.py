"""A power cut that loses what was not synced: for machines whose disk is ext4 on a loop device.

The file system is shut down first, as a controller that loses power does: from that moment nothing more reaches the disk,
and what was only in memory is gone. Then everything on the machine is killed, the journal is replayed by mounting again,
and whoever calls `Machine.boot` starts from what a disk would hold.

`careful_disk` takes away what ext4 does for careless programs: without it a file that is renamed over another one is
written to the disk before, so that a forgotten fsync goes unnoticed.
"""

import errno
import fcntl
import os
import struct
from pathlib import Path

from tests.lab.api import wait_for
from tests.lab.commands import run
from tests.lab.errors import LabError
from tests.lab.machine import Machine

# _IOR('X', 125, __u32) and its strictest flag: the journal is not written out either (fs/ext4/ext4.h).
_EXT4_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2
_CAREFUL = "noauto_da_alloc"


def careful_disk(machine: Machine) -> None:
    """Have the disk of a machine lose what is not synced, even if it is renamed over an older file."""
    run("mount", "-o", f"remount,{_CAREFUL}", str(machine.base))


def cut_power(machine: Machine) -> None:
    """End a machine at this moment; afterwards its disk holds what was synced, and can be looked at below `machine.base`.

    Raises:
        LabError: its disk is no ext4.
    """
    source = _source(machine.base)
    descriptor = os.open(machine.base, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(descriptor, _EXT4_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
    finally:
        os.close(descriptor)
    machine.kill_power()
    run("umount", str(machine.base))
    # A machine that starts at this moment has a copy of our mounts until it has left them; mounted again now, the disk would be the dead one.
    wait_for(lambda: _is_free(source), timeout=10, what=f"{source} not to be mounted anywhere", interval=0.01)
    run("mount", "-t", "ext4", "-o", _CAREFUL, source, str(machine.base))


def _is_free(device: str) -> bool:
    """Whether no file system on a device is mounted, in any namespace."""
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _source(point: Path) -> str:
    """Return the device that is mounted at a point."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        kind, source, *_ = right.split()
        if left.split()[4] == str(point):
            if kind != "ext4":
                break
            return source
    raise LabError(f"{point} is not on ext4: create the machine with storage='ext4'")
