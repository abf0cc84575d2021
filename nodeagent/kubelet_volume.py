"""The kubelet's data volume: an attached disk is formatted once, gets what is in /var/lib/kubelet, and is mounted there.

The label `KUBEDEV` is the commit: it is set last, after the content was copied and synced. Until then the file system
carries another label, by which the next run after a kill knows that the disk is ours and unfinished, and formats it again.
So a disk with the label always is complete and is only mounted, and whatever else bears a signature is never touched.
(Gardener's own agent does not know the other label; it would take an unfinished disk for somebody else's and find none.)

Source: gardener pkg/nodeagent/bootstrap/kubelet_data_volume.go and its script (contract 8.3, 9 W20).
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from agents.core import files, process
from agents.core.errors import AgentError, RetriableError
from agents.core.logging import get_logger
from nodeagent.host import mounts
from nodeagent.host.block_devices import BlockDevice, BlockDevices, Signatures
from nodeagent.host.mounts import Mount
from nodeagent.paths import Paths

log = get_logger(__name__)

LABEL = "KUBEDEV"
"""What the unit `var-lib-kubelet.mount` of the OSC looks for."""
UNFINISHED_LABEL = "KUBEDEV-NEW"
FILE_SYSTEM = "ext4"
MOUNT_OPTIONS = "defaults,prjquota,errors=remount-ro"
FORMAT_OPTIONS = "lazy_itable_init=0,lazy_journal_init=0,quotatype=usrquota:grpquota:prjquota"
KUBELET_MODE = 0o755

# Without lazy initialisation every inode table is written: about 16 GB for a TiB.
FORMAT_DEADLINE = timedelta(hours=1)
COPY_DEADLINE = timedelta(hours=1)
MOUNT_DEADLINE = timedelta(minutes=5)  # the journal may have to be replayed
SHORT_DEADLINE = timedelta(minutes=1)


class VolumeError(RetriableError):
    """The data volume cannot be had; systemd repeats the command."""


class Tools(Protocol):
    """The programs that change the machine; each raises `AgentError` unless it succeeded."""

    async def format(self, node: Path, label: str) -> None:
        """Make an ext4 file system with user, group and project quota, completely initialised."""
        ...

    async def set_label(self, node: Path, label: str) -> None:
        """Change the label of a file system, durably."""
        ...

    async def mount(self, node: Path, point: Path, options: str) -> None:
        """Mount an ext4 file system."""
        ...

    async def unmount(self, point: Path) -> None:
        """Unmount the uppermost mount of a point; what was written there is on the disk then."""
        ...

    async def detach(self, point: Path) -> None:
        """Take the uppermost mount of a point out of the way, busy or not."""
        ...

    async def copy(self, source: Path, target: Path) -> None:
        """Make a folder hold what another one holds, with all attributes, and sync it; mounts in the source are left out."""
        ...


class ProgramTools:
    """The real ones."""

    async def format(self, node: Path, label: str) -> None:
        """Run mkfs.ext4."""
        options = ["-q", "-L", label, "-O", "quota", "-E", FORMAT_OPTIONS]
        await process.run(["mkfs.ext4", *options, str(node)], deadline=FORMAT_DEADLINE)

    async def set_label(self, node: Path, label: str) -> None:
        """Run tune2fs."""
        await process.run(["tune2fs", "-L", label, str(node)], deadline=SHORT_DEADLINE)

    async def mount(self, node: Path, point: Path, options: str) -> None:
        """Run mount."""
        command = ["mount", "-t", FILE_SYSTEM, "-o", options, str(node), str(point)]
        await process.run(command, deadline=MOUNT_DEADLINE)

    async def unmount(self, point: Path) -> None:
        """Run umount."""
        await process.run(["umount", str(point)], deadline=MOUNT_DEADLINE)

    async def detach(self, point: Path) -> None:
        """Run umount, with `--lazy` if it must be."""
        await mounts.unmount(point)

    async def copy(self, source: Path, target: Path) -> None:
        """Run cp and sync."""
        options = ["--archive", "--one-file-system", "--no-target-directory"]
        await process.run(["cp", *options, str(source), str(target)], deadline=COPY_DEADLINE)
        await process.run(["sync", "--file-system", str(target)], deadline=COPY_DEADLINE)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A device and what is on it; None if that cannot be found out."""

    device: BlockDevice
    signatures: Signatures | None

    def has(self, label: str) -> bool:
        return self.signatures is not None and self.signatures.label == label


class KubeletVolume:
    """Makes sure that the data volume is mounted at /var/lib/kubelet.

    Args:
        paths: where things are.
        devices: block devices of the machine.
        tools: programs that change it.
        mount_table: what is mounted.
    """

    def __init__(
        self, *, paths: Paths, devices: BlockDevices, tools: Tools, mount_table: Path = mounts.MOUNT_TABLE
    ) -> None:
        self._kubelet = paths.kubelet
        self._scratch = paths.volume_scratch
        self._devices = devices
        self._tools = tools
        self._mount_table = mount_table

    async def prepare(self, size_bytes: int) -> None:
        """Format if that has not been done, and mount. Safe to repeat after an end at any moment.

        Args:
            size_bytes: size of the disk; exactly this.

        Raises:
            VolumeError: there is no such disk, or what was done did not have the effect.
            AgentError: a program failed.
        """
        await asyncio.to_thread(files.ensure_directory, self._kubelet, mode=KUBELET_MODE)
        await self._leave_scratch()
        seen = await self._look()
        device = self._complete(seen, size_bytes)
        if device is None:
            device = await self._choose(seen, size_bytes)
            await self._fill(device)
        await self._mount(device)

    async def _look(self) -> list[_Seen]:
        found = []
        for device in await asyncio.to_thread(self._devices.list):
            signatures = None
            try:
                signatures = await self._devices.probe(device)
            except AgentError as error:
                log.info("Device not readable, left alone", device=device.name, error=error)
            found.append(_Seen(device, signatures))
        return found

    def _complete(self, seen: Sequence[_Seen], size_bytes: int) -> BlockDevice | None:
        """Return the device with the label; of several the one that is mounted, or has the size.

        Raises:
            VolumeError: several, and nothing tells which.
        """
        # What others are made of shows their label as well: the paths of a multipath device.
        labelled = [one.device for one in seen if one.has(LABEL) and not one.device.holders]
        if len(labelled) <= 1:
            return labelled[0] if labelled else None
        mounted = mounts.on(self._mounts(), self._kubelet)
        here = [device for device in labelled if mounted is not None and mounted.device == device.number]
        fitting = here or [device for device in labelled if device.size_bytes == size_bytes]
        if len(fitting) == 1:
            return fitting[0]
        names = ", ".join(str(device.node) for device in labelled)
        raise VolumeError(f"several file systems are labelled {LABEL}: remove the label of all but one", devices=names)

    async def _choose(self, seen: Sequence[_Seen], size_bytes: int) -> BlockDevice:
        """Return the disk to be formatted: one that an earlier run did not finish, else the first empty one."""
        unfinished = [one for one in seen if one.has(UNFINISHED_LABEL)]
        rest = [one for one in seen if not one.has(UNFINISHED_LABEL)]
        refused = {}
        for one in (*unfinished, *rest):
            if not one.device.whole_disk or one.device.size_bytes != size_bytes:
                continue
            problems = await asyncio.to_thread(self._problems, one)
            if not problems:
                return one.device
            refused[str(one.device.node)] = ", ".join(problems)
        for node, problem in refused.items():
            log.info("Disk has the size and is not formatted", device=node, problem=problem)
        why = "; ".join(f"{node} {problem}" for node, problem in refused.items())
        raise VolumeError("no empty disk of this size", sizeBytes=size_bytes, refused=why or "none")

    def _problems(self, one: _Seen) -> list[str]:
        """Return why a disk must not be formatted."""
        return list(self._find_problems(one.device, one.signatures))

    def _find_problems(self, device: BlockDevice, signatures: Signatures | None) -> Iterator[str]:
        if signatures is None:
            yield "cannot be read"
        elif signatures and (signatures.label, signatures.kind) != (UNFINISHED_LABEL, FILE_SYSTEM):
            yield f"has {signatures.description}"
        if device.read_only:
            yield "is read-only"
        if device.holders:
            yield f"is part of {', '.join(device.holders)}"
        mounted = [mount for mount in self._mounts() if mount.device in (device.number, *device.partitions)]
        if mounted:
            yield f"is mounted at {mounted[0].point}"
        elif self._devices.in_use(device):
            yield "is in use"

    async def _fill(self, device: BlockDevice) -> None:
        """Format, copy, and set the label that says that all is done."""
        log.info("Kubelet data volume is being formatted", device=str(device.node), sizeBytes=device.size_bytes)
        await self._tools.format(device.node, UNFINISHED_LABEL)
        await self._expect(device, UNFINISHED_LABEL)
        await asyncio.to_thread(files.ensure_directory, self._scratch, mode=0o700)
        try:
            await self._tools.mount(device.node, self._scratch, "defaults")
            self._expect_mounted(device, self._scratch)
            await self._tools.copy(self._kubelet, self._scratch)
            await self._tools.unmount(self._scratch)
        finally:
            await self._leave_scratch()
        await self._tools.set_label(device.node, LABEL)
        await self._expect(device, LABEL)
        log.info("Kubelet data volume formatted, content copied", device=str(device.node))

    async def _expect(self, device: BlockDevice, label: str) -> None:
        found = await self._devices.probe(device)
        if (found.kind, found.label) != (FILE_SYSTEM, label):
            raise VolumeError(
                "device is not what it was made", device=str(device.node), found=found.description, expected=label
            )

    async def _mount(self, device: BlockDevice) -> None:
        present = mounts.on(self._mounts(), self._kubelet)
        if present is not None and present.device == device.number:
            log.info("Kubelet data volume is mounted", device=str(device.node))
            return
        await self._tools.mount(device.node, self._kubelet, MOUNT_OPTIONS)
        self._expect_mounted(device, self._kubelet)
        log.info("Kubelet data volume mounted", device=str(device.node), path=str(self._kubelet))

    def _expect_mounted(self, device: BlockDevice, point: Path) -> None:
        found = mounts.on(self._mounts(), point)
        if found is None or found.device != device.number:
            raise VolumeError("device is not where it was mounted", device=str(device.node), path=str(point))

    async def _leave_scratch(self) -> None:
        """Take away what a failed or killed run left at the temporary mount point, and the point itself.

        Raises:
            AgentError: it stays mounted.
        """
        while mounts.on(self._mounts(), self._scratch) is not None:
            await self._tools.detach(self._scratch)
        with contextlib.suppress(files.FileError):  # an empty folder in /run is in nobody's way
            await asyncio.to_thread(files.remove_directory_if_empty, self._scratch)

    def _mounts(self) -> list[Mount]:
        return mounts.read_mounts(self._mount_table)
