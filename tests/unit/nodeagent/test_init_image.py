"""Which mounts are taken for images that the init script left, and what becomes of them."""

from pathlib import Path

import pytest

from agents.core.errors import RetriableError
from nodeagent.init_image import InitImages

ONE_LAYER = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/7/fs"


class Images:
    """containerd's client on a machine whose mount table is a file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.table = root / "mountinfo"
        self.lines: dict[Path, str] = {}
        self.forgotten: list[str] = []
        self.containerd = True
        self.busy: set[str] = set()

    def mounted(
        self, name: str, *, kind: str = "overlay", root: str = "/", binary: str = "gardener-node-agent"
    ) -> Path:
        """Mount something below the temporary folder."""
        point = self.root / name
        file = point / binary
        file.parent.mkdir(parents=True)
        file.write_text("agent")
        self.lines[point] = f"{30 + len(self.lines)} 1 0:50 {root} {point} rw - {kind} none rw"
        self._write()
        return point

    async def unmount(self, target: Path) -> None:
        """Unmount, remove the snapshot and the lease."""
        if not self.containerd or target.name in self.busy:
            raise RetriableError("containerd does not answer")
        await self.only_unmount(target)
        self.forgotten.append(target.name)

    async def only_unmount(self, target: Path) -> None:
        """Unmount."""
        if target.name in self.busy:
            raise RetriableError("busy")
        for file in sorted(target.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        del self.lines[target]
        self._write()

    async def clean(self) -> None:
        """Run the part of the product."""
        await InitImages(images=self, unmount=self.only_unmount, mount_table=self.table).clean()

    def _write(self) -> None:
        self.table.write_text("\n".join(self.lines.values()) + "\n")


@pytest.fixture
def images(tmp_path: Path) -> Images:
    """A machine without mounts."""
    return Images(tmp_path)


async def test_w21_images_of_the_init_script_are_unmounted(images: Images) -> None:
    """Contract 8.1, 9 W21: every one that a run of the script left, of one layer or many, also built with ko; folders go as well."""
    images.mounted("tmp.0aB3dE6gHi")
    images.mounted("tmp.AAAAAAAAAA", kind="ext4", root=ONE_LAYER)
    images.mounted("tmp.BBBBBBBBBB", binary="ko-app/gardener-node-agent")
    await images.clean()
    assert sorted(images.forgotten) == ["tmp.0aB3dE6gHi", "tmp.AAAAAAAAAA", "tmp.BBBBBBBBBB"]
    assert list(images.root.glob("tmp.*")) == []


async def test_w21_mounts_of_others_are_left_alone(images: Images) -> None:
    """Contract 9 W21: another name, another origin, or an image without the agent's binary is nobody's leftover."""
    images.mounted("tmp.short")
    images.mounted("mount-image-1")
    images.mounted("tmp.CCCCCCCCCC", kind="ext4")
    images.mounted("tmp.DDDDDDDDDD", binary="another-binary")
    await images.clean()
    assert images.forgotten == []
    assert len(images.lines) == 4


async def test_w21_one_that_cannot_be_unmounted_holds_nothing_up(images: Images) -> None:
    """Contract 9 W21: it is logged and tried again at the next run; the others go, and bootstrap goes on."""
    images.mounted("tmp.EEEEEEEEEE")
    images.mounted("tmp.FFFFFFFFFF")
    images.busy = {"tmp.EEEEEEEEEE"}
    await images.clean()
    assert [point.name for point in images.lines] == ["tmp.EEEEEEEEEE"]


async def test_w21_without_containerd_the_images_are_unmounted_all_the_same(images: Images) -> None:
    """Contract 9 W21: what containerd keeps of them expires after a day."""
    images.mounted("tmp.EEEEEEEEEE")
    images.mounted("tmp.FFFFFFFFFF")
    images.containerd = False
    await images.clean()
    assert images.lines == {}
    assert images.forgotten == []
    assert list(images.root.glob("tmp.*")) == []


async def test_an_unreadable_mount_table_holds_nothing_up(images: Images) -> None:
    """Contract 9 W21: cleaning up is never a reason not to join."""
    images.table = images.root / "missing"
    await images.clean()
    assert images.forgotten == []
