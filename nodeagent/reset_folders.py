"""The folders that a reset empties: the agent's own, and the kubelet's with all that is mounted in it.

Nothing is deleted in a file system that is still mounted: first everything below a folder is unmounted, then the mount table
is read again, and where something was mounted meanwhile the kernel refuses to remove the mount point.

Source: gardener pkg/nodeagent/reset/reset.go (contract 8.4, 9 W41).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from agents.core import files, trees
from agents.core.errors import AgentError
from agents.core.logging import get_logger
from nodeagent.host import mounts
from nodeagent.host.block_devices import BlockDevices
from nodeagent.host.mounts import Mount, StillMounted
from nodeagent.kubelet_volume import LABEL
from nodeagent.paths import Paths

log = get_logger(__name__)


class NodeFolders:
    """The real ones.

    Args:
        paths: where they are.
        devices: tells whether what is mounted is the data volume.
        unmount: unmounts the uppermost mount of a point.
        mount_table: what is mounted.
    """

    def __init__(
        self,
        *,
        paths: Paths,
        devices: BlockDevices,
        unmount: Callable[[Path], Awaitable[None]] = mounts.unmount,
        mount_table: Path = mounts.MOUNT_TABLE,
    ) -> None:
        self._paths = paths
        self._devices = devices
        self._unmount = unmount
        self._mount_table = mount_table

    async def empty_kubelet(self) -> None:
        """Unmount what is below the kubelet's folder and empty it, on the data volume if there is one."""
        await self._unmount_below(self._paths.kubelet)
        await self._empty(self._paths.kubelet)

    async def leave_kubelet(self) -> None:
        """As `empty_kubelet`, and unmount the data volume as well; another file system that is mounted there stays."""
        await self.empty_kubelet()
        while (mount := mounts.on(await self._mounts(), self._paths.kubelet)) is not None:
            if not await self._is_data_volume(mount):
                return
            await self._unmount(mount.point)
            log.info("Kubelet data volume unmounted", path=str(mount.point))
            await self.empty_kubelet()

    async def empty_own(self, *, keep: Collection[Path]) -> None:
        """Empty the agent's folders but for some files."""
        for folder in (self._paths.base, self._paths.runtime):
            await self._unmount_below(folder)
            await self._empty(folder, keep=keep)
        await asyncio.to_thread(files.remove_directory_if_empty, self._paths.runtime)

    async def _unmount_below(self, folder: Path) -> None:
        """Unmount everything below a folder, deepest first.

        Raises:
            StillMounted: something is, or was mounted meanwhile.
        """
        for mount in mounts.below(await self._mounts(), folder):
            await self._unmount(mount.point)
            log.info("Unmounted", path=str(mount.point))
        if left := mounts.below(await self._mounts(), folder):
            raise StillMounted("something is still mounted", paths=", ".join(str(mount.point) for mount in left[:5]))

    async def _empty(self, folder: Path, *, keep: Collection[Path] = ()) -> None:
        kept = {path.name for path in keep if path.parent == folder}
        removed = await asyncio.to_thread(trees.remove_content, folder, keep=kept)
        if removed:
            log.info("Folder emptied", path=str(folder), entries=removed)

    async def _is_data_volume(self, mount: Mount) -> bool:
        for device in await asyncio.to_thread(self._devices.list):
            if device.number == mount.device:
                try:
                    return (await self._devices.probe(device)).label == LABEL
                except AgentError as error:
                    log.error("Device at the kubelet's folder unreadable, it stays mounted", error=error)
        return False

    async def _mounts(self) -> list[Mount]:
        return await asyncio.to_thread(mounts.read_mounts, self._mount_table)
