"""Disks of machines: a tmpfs, or ext4 on a loop device where fsync has to mean something."""

import subprocess
from pathlib import Path
from typing import Literal

from tests.lab.commands import run
from tests.lab.state import Ledger

_TMPFS_SIZE = "4g"
_EXT4_SIZE = 4 * 1024**3
# A file on a tmpfs would make fsync free, so the backing file lies where the host keeps temporary files on a disk.
_BACKING_FOLDER = Path("/var/tmp")


def create_base(ledger: Ledger, base: Path, owner: str, *, storage: Literal["tmpfs", "ext4"]) -> None:
    """Make and mount the disk of a machine; recorded first."""
    base.mkdir(parents=True, exist_ok=True)
    ledger.record("mount", path=str(base), owner=owner)
    if storage == "tmpfs":
        run("mount", "-t", "tmpfs", "-o", f"size={_TMPFS_SIZE},mode=755", "tmpfs", str(base))
        return
    device = create_loop(ledger, _BACKING_FOLDER / f"gardener-lab-{ledger.name}-{owner}.ext4", _EXT4_SIZE, owner=owner)
    run("mount", "-t", "ext4", str(device), str(base))
    (base / "lost+found").rmdir()


def create_loop(ledger: Ledger, file: Path, size_bytes: int, *, owner: str) -> Path:
    """Make a file with an empty ext4 file system and attach a loop device to it; recorded first."""
    device = create_empty_loop(ledger, file, size_bytes, owner=owner)
    run("mkfs.ext4", "-q", "-F", str(device))
    return device


def create_empty_loop(ledger: Ledger, file: Path, size_bytes: int, *, owner: str) -> Path:
    """Make a file of zeroes and attach a loop device to it; recorded first."""
    ledger.record("loop", file=str(file), owner=owner)
    with file.open("wb") as backing:
        backing.truncate(size_bytes)
    return Path(run("losetup", "--find", "--show", str(file)).strip())


def remove_loop(file: Path) -> None:
    """Detach and delete what `create_loop` made; safe to repeat."""
    for device in loops_of(file):
        run("losetup", "--detach", device)
    file.unlink(missing_ok=True)


def loops_of(file: Path) -> list[str]:
    """Return the loop devices in front of a file."""
    listed = subprocess.run(
        ["losetup", "--noheadings", "--output", "NAME", "--associated", str(file)],
        check=False,
        capture_output=True,
        text=True,
    )
    return listed.stdout.split()
