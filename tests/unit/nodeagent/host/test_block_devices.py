"""Block devices as sysfs shows them."""

from pathlib import Path
from typing import Any

import pytest

from nodeagent.host.block_devices import BlockDevice, KernelBlockDevices, Signatures


class Sys:
    """A /sys/class/block and a /dev of a test's own making."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.numbers: dict[Path, str] = {}
        (root / "sys/class/block").mkdir(parents=True)

    def add(self, name: str, number: str, *, sectors: int = 100, node: str | None = "", **files: str) -> Path:
        """Add a device; further files by path, with `__` for a slash."""
        folder = self.root / "sys/class/block" / name
        for path, text in {"size": str(sectors), "dev": number, "ro": "0", **files}.items():
            file = folder / path.replace("__", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")
        if node is not None:
            self.numbers[self.root / "dev" / (node or name)] = number
        return folder

    def list(self) -> dict[str, BlockDevice]:
        """Return what is found, by name."""
        devices = KernelBlockDevices(root=self.root, number_of=self.numbers.get)
        return {device.name: device for device in devices.list()}


@pytest.fixture
def sys(tmp_path: Path) -> Sys:
    """A machine without devices."""
    return Sys(tmp_path)


def test_a_disk_has_its_size_number_node_and_partitions(sys: Sys) -> None:
    """Contract 8.3: size in bytes from 512-byte sectors; partitions are known by number, and are no disks themselves."""
    sys.add("vda", "253:0", sectors=2048, vda1__partition="1", vda1__dev="253:1", holders__dm_0="")
    sys.add("vda1", "253:1", partition="1")
    found = sys.list()
    assert found["vda"] == BlockDevice(
        name="vda",
        number="253:0",
        node=sys.root / "dev/vda",
        size_bytes=2048 * 512,
        holders=("dm_0",),
        partitions=("253:1",),
    )
    assert not found["vda1"].whole_disk


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("sr0", {}),
        ("fd0", {}),
        ("ram0", {}),
        ("zram0", {}),
        ("loop0", {"loop__backing_file": "/x"}),
        ("dm-0", {"dm__name": "x"}),
        ("md0", {"md__level": "raid1"}),
        ("sdz", {"device__type": "5"}),
        ("nvme0c0n1", {"hidden": "1"}),
    ],
)
def test_what_is_no_disk_is_known_as_such(sys: Sys, name: str, files: dict[str, Any]) -> None:
    """Contract 8.3: only devices of type disk are formatted: no loop, RAM, optical, mapped, RAID or hidden device."""
    sys.add(name, "1:0", **files)
    assert not sys.list()[name].whole_disk


@pytest.mark.parametrize("files", [{}, {"device__type": "0"}, {"device__type": "MMC"}, {"hidden": "0"}])
def test_disks_of_all_buses_are_disks(sys: Sys, files: dict[str, Any]) -> None:
    """Contract 8.3: SCSI, virtio, NVMe and memory cards say different things about themselves, or nothing."""
    sys.add("nvme1n1", "259:0", **files)
    assert sys.list()["nvme1n1"].whole_disk


def test_a_read_only_disk_is_known_as_such(sys: Sys) -> None:
    """Contract 8.3: the kernel's read-only flag is read."""
    sys.add("sdb", "8:16", ro="1")
    assert sys.list()["sdb"].read_only


def test_a_device_without_size_or_without_a_node_of_its_own_is_left_out(sys: Sys) -> None:
    """Contract 8.3: an empty drive is nothing, and another device's node is never taken for it."""
    sys.add("loop1", "7:1", sectors=0)
    sys.add("sdb", "8:16", node=None)
    sys.add("sdc", "8:32")
    sys.numbers[sys.root / "dev/sdc"] = "8:48"
    broken = sys.add("sdd", "8:48")
    (broken / "size").unlink()
    assert sys.list() == {}


def test_a_slash_in_a_devices_name_is_an_exclamation_mark_in_sysfs(sys: Sys) -> None:
    """Contract 8.3: `cciss!c0d0` is /dev/cciss/c0d0."""
    sys.add("cciss!c0d0", "104:0", node="cciss/c0d0")
    assert sys.list()["cciss!c0d0"].node == sys.root / "dev/cciss/c0d0"


def test_devices_come_in_the_order_of_their_numbers(sys: Sys) -> None:
    """Contract 8.3: which is the first one does not depend on chance; sdb comes before sdaa."""
    for name, number in (("sdaa", "65:160"), ("sdb", "8:16"), ("sdc", "8:128"), ("vdb", "253:16")):
        sys.add(name, number)
    assert list(sys.list()) == ["sdb", "sdc", "sdaa", "vdb"]


def test_a_machine_without_sysfs_has_no_devices(tmp_path: Path) -> None:
    """A folder that is missing is no error."""
    assert list(KernelBlockDevices(root=tmp_path).list()) == []


def test_signatures_describe_themselves() -> None:
    """The texts of error messages; nothing found is false."""
    assert not Signatures()
    assert Signatures("ext4", "DATA").description == "ext4 labelled DATA"
    assert Signatures("LVM2_member").description == "LVM2_member"
    assert Signatures(partition_table="gpt").description == "partition table gpt"
    assert Signatures(ambivalent=True).description == "several signatures"
    assert Signatures().description == "nothing"
