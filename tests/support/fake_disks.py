"""Disks, mounts and the programs that change them, in memory; a run can be killed or fail at any of its acts."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agents.core.errors import RetriableError
from nodeagent.host.block_devices import BlockDevice, Signatures
from nodeagent.paths import Paths

GIB = 1024**3
NOTHING = Signatures()


class Killed(BaseException):
    """The process was killed here."""


class ProgramFailed(RetriableError):
    """A program exited with a code other than 0."""


@dataclass
class FakeDisk:
    """A block device and what is on it.

    Attributes:
        device: as sysfs shows it.
        signatures: what probing finds; None if it cannot be read.
        files: of its file system.
        held: in use by something that no mount table shows.
    """

    device: BlockDevice
    signatures: Signatures | None = NOTHING
    files: dict[str, str] = field(default_factory=dict)
    held: bool = False


@dataclass(frozen=True)
class FakeMount:
    """One mount."""

    disk: FakeDisk
    point: Path
    options: str


def disk(index: int, *, size_bytes: int = GIB, **fields: object) -> BlockDevice:
    """Return an ordinary disk: sda, sdb and so on."""
    name = f"sd{chr(ord('a') + index)}"
    values: dict[str, object] = {"name": name, "number": f"8:{index * 16}", "node": Path("/dev", name)}
    return BlockDevice(**{**values, "size_bytes": size_bytes, **fields})  # type: ignore[arg-type]  # of a test's own making


class FakeDisks:
    """A machine with disks; stands in for block devices and programs alike.

    Attributes:
        disks: by name.
        mounts: in order.
        below: what lies in /var/lib/kubelet underneath all mounts.
        acts: names of the programs that ran, in order.
        kill: number of the act at which the process is killed, and whether before or after it.
        fail: names of programs that fail.
        idle: names of programs that say that they succeeded and do nothing.
        hang: names of programs that never end.
    """

    def __init__(self, root: Path, below: Mapping[str, str]) -> None:
        self.paths = Paths(root=root)
        self.table = root / "mountinfo"
        self.table.write_text("")
        self.disks: dict[str, FakeDisk] = {}
        self.mounts: list[FakeMount] = []
        self.below = dict(below)
        self.acts: list[str] = []
        self.kill: tuple[int, bool] | None = None
        self.fail: set[str] = set()
        self.idle: set[str] = set()
        self.hang: set[str] = set()

    def add(self, found: FakeDisk) -> FakeDisk:
        """Attach a disk."""
        self.disks[found.device.name] = found
        return found

    def mount_somewhere(self, found: FakeDisk, point: Path, options: str = "defaults") -> None:
        """Mount, as somebody else."""
        self.mounts.append(FakeMount(found, point, options))
        self._write_table()

    def content(self, point: Path) -> dict[str, str]:
        """Return the files that are to be seen at a point."""
        for mount in reversed(self.mounts):
            if mount.point == point:
                return mount.disk.files
        return self.below

    # The block devices.

    def list(self) -> Sequence[BlockDevice]:
        """Return all."""
        return [found.device for found in self.disks.values()]

    async def probe(self, device: BlockDevice) -> Signatures:
        """Return what is there."""
        signatures = self.disks[device.name].signatures
        if signatures is None:
            raise ProgramFailed("cannot be probed")
        return signatures

    def in_use(self, device: BlockDevice) -> bool:
        """Tell whether it is mounted or held."""
        found = self.disks[device.name]
        return found.held or any(mount.disk is found for mount in self.mounts)

    # The programs.

    async def format(self, node: Path, label: str) -> None:
        """Make an empty file system."""
        if await self._begins("format"):
            found = self._at(node)
            found.signatures, found.files = Signatures("ext4", label), {}
        self._ends()

    async def set_label(self, node: Path, label: str) -> None:
        """Change the label."""
        if await self._begins("set_label"):
            self._at(node).signatures = Signatures("ext4", label)
        self._ends()

    async def mount(self, node: Path, point: Path, options: str) -> None:
        """Mount."""
        if await self._begins("mount"):
            self.mount_somewhere(self._at(node), point, options)
        self._ends()

    async def unmount(self, point: Path) -> None:
        """Unmount the uppermost."""
        if await self._begins("unmount"):
            self._unmount(point)
        self._ends()

    async def detach(self, point: Path) -> None:
        """Unmount, busy or not."""
        if await self._begins("detach"):
            self._unmount(point)
        self._ends()

    async def copy(self, source: Path, target: Path) -> None:
        """Copy, file by file; each is an act of its own."""
        await self._begins("copy")
        for name, text in list(self.content(source).items()):
            self.content(target)[name] = text
            self._ends()
            await self._begins("copy")
        self._ends()

    def _unmount(self, point: Path) -> None:
        index = max(i for i, mount in enumerate(self.mounts) if mount.point == point)
        del self.mounts[index]
        self._write_table()

    def _at(self, node: Path) -> FakeDisk:
        return next(found for found in self.disks.values() if found.device.node == node)

    async def _begins(self, name: str) -> bool:
        self.acts.append(name)
        self._die(after=False)
        if name in self.hang:
            await asyncio.Event().wait()
        if name in self.fail:
            raise ProgramFailed(f"{name} failed")
        return name not in self.idle

    def _ends(self) -> None:
        self._die(after=True)

    def _die(self, *, after: bool) -> None:
        """End it here, and whatever it would clear up on its way out."""
        if self.kill is not None and (len(self.acts), after) >= self.kill:
            raise Killed

    def _write_table(self) -> None:
        lines = [
            f"{20 + index} 1 {mount.disk.device.number} / {_escaped(mount.point)} rw - ext4 {mount.disk.device.node} rw\n"
            for index, mount in enumerate(self.mounts)
        ]
        self.table.write_text("".join(lines))


def _escaped(point: Path) -> str:
    return str(point).replace(" ", r"\040")
