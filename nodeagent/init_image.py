"""Unmount the images that user data's `init.sh` leaves mounted: it replaces itself by us, so its exit trap never runs (W21).

Each run of the script leaves one more, and it is repeated every five seconds until the agent's unit runs. Recognised by
all of: the name that `mktemp` gave the folder, a mount out of containerd's snapshots, and the agent's binary in it.

Source: gardener pkg/component/extensions/operatingsystemconfig/nodeinit/templates/scripts/init.tpl.sh (contract 8.1).
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from agents.core import files
from agents.core.errors import AgentError
from agents.core.logging import get_logger
from nodeagent.host import mounts
from nodeagent.host.mounts import Mount

log = get_logger(__name__)

_TEMPORARY_FOLDER = re.compile(r"^tmp\.[0-9A-Za-z]{10}$")
_BINARIES = ("gardener-node-agent", "ko-app/gardener-node-agent")
_SNAPSHOTS = "io.containerd.snapshotter."
_ALL_SECONDS = 60


class ImageMounts(Protocol):
    """`nodeagent.host.ctr.Ctr`, as far as it is used here."""

    async def unmount(self, target: Path) -> None:
        """Unmount an image and remove its snapshot and its lease."""
        ...


class InitImages:
    """The images that the init script left.

    Args:
        images: containerd's client.
        unmount: unmounts without containerd.
        mount_table: what is mounted.
    """

    def __init__(
        self, *, images: ImageMounts, unmount: Callable[[Path], Awaitable[None]], mount_table: Path = mounts.MOUNT_TABLE
    ) -> None:
        self._images = images
        self._unmount = unmount
        self._mount_table = mount_table
        self._containerd_answers = True

    async def clean(self) -> None:
        """Unmount and forget them; what cannot be done is logged and left to the next run. Never raises but for cancellation."""
        try:
            async with asyncio.timeout(_ALL_SECONDS):
                for mount in await asyncio.to_thread(_find, self._mount_table):
                    await self._remove(mount.point)
        except OSError as error:  # also TimeoutError
            log.error("Images of the init script not looked for", error=error)

    async def _remove(self, point: Path) -> None:
        try:
            await self._forget(point)
            if mounts.on(await asyncio.to_thread(mounts.read_mounts, self._mount_table), point) is not None:
                await self._unmount(point)
            await asyncio.to_thread(files.remove_directory_if_empty, point)
            log.info("Image of the init script unmounted", path=str(point))
        except AgentError as error:
            log.error("Image of the init script not unmounted", path=str(point), error=error)

    async def _forget(self, point: Path) -> None:
        """Have containerd unmount it and remove snapshot and lease; asked once in vain it is not asked again."""
        if not self._containerd_answers:
            return
        try:
            await self._images.unmount(point)
        except AgentError as error:
            self._containerd_answers = False
            log.info("Snapshot of the init script's image not removed, it expires", path=str(point), error=error)


def _find(mount_table: Path) -> list[Mount]:
    return [mount for mount in reversed(mounts.read_mounts(mount_table)) if _is_init_image(mount)]


def _is_init_image(mount: Mount) -> bool:
    # An image of one layer is bind-mounted from the snapshot's folder, of several it is an overlay.
    from_containerd = mount.kind == "overlay" or _SNAPSHOTS in mount.root
    if not _TEMPORARY_FOLDER.match(mount.point.name) or not from_containerd:
        return False
    return any((mount.point / binary).is_file() for binary in _BINARIES)
