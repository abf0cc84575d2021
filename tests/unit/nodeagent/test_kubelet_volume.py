"""The kubelet's data volume: which disk is taken, what a failure or a kill leaves behind, and that a repetition converges."""

import asyncio
from itertools import count
from pathlib import Path

import pytest

from nodeagent.host.block_devices import Signatures
from nodeagent.kubelet_volume import KubeletVolume, VolumeError
from tests.support.fake_disks import GIB, FakeDisk, FakeDisks, Killed, ProgramFailed, disk

CONTENT = {"config": "one", ".hidden": "two", "pki/key": "three"}
COMPLETE = Signatures("ext4", "KUBEDEV")
UNFINISHED = Signatures("ext4", "KUBEDEV-NEW")
OPTIONS = "defaults,prjquota,errors=remount-ro"


@pytest.fixture
def machine(tmp_path: Path) -> FakeDisks:
    """A machine with the system's disk and something in the kubelet's directory."""
    found = FakeDisks(tmp_path, CONTENT)
    system = found.add(FakeDisk(disk(0, size_bytes=GIB, partitions=("8:1",)), Signatures(partition_table="gpt")))
    found.add(FakeDisk(disk(9, size_bytes=GIB, whole_disk=False), Signatures("ext4", "ROOT")))
    found.mount_somewhere(system, Path("/"))
    return found


async def prepare(machine: FakeDisks) -> None:
    """Run it once, as one process does."""
    volume = KubeletVolume(paths=machine.paths, devices=machine, tools=machine, mount_table=machine.table)
    await volume.prepare(GIB)


def assert_ready(machine: FakeDisks, found: FakeDisk) -> None:
    """The volume has label and content, is mounted at its place with its options, and nowhere else."""
    assert found.signatures == COMPLETE
    assert found.files == CONTENT
    mine = [mount for mount in machine.mounts if mount.disk is found]
    assert [(mount.point, mount.options) for mount in mine] == [(machine.paths.kubelet, OPTIONS)]
    assert not (machine.paths.root / "run/gardener-node-agent/kubelet-data-volume").exists()


async def test_an_empty_disk_of_the_size_is_formatted_filled_and_mounted(machine: FakeDisks) -> None:
    """Contract 8.3: the first empty disk of exactly that size gets label and content and is mounted with its options."""
    machine.add(FakeDisk(disk(1, size_bytes=GIB + 512)))
    wanted = machine.add(FakeDisk(disk(2)))
    other = machine.add(FakeDisk(disk(3)))
    await prepare(machine)
    assert_ready(machine, wanted)
    assert other.signatures == Signatures()
    assert machine.paths.kubelet.stat().st_mode & 0o777 == 0o755


async def test_w20_a_labelled_device_is_mounted_and_not_formatted(machine: FakeDisks) -> None:
    """Contract 8.3, 9 W20: a device that has the label is only mounted, on every run anew where it is not; content stays."""
    found = machine.add(FakeDisk(disk(1, size_bytes=2 * GIB), COMPLETE, dict(CONTENT)))
    machine.below = {"other": "hidden by the mount"}
    await prepare(machine)
    assert machine.acts == ["mount"]
    assert_ready(machine, found)
    await prepare(machine)
    assert machine.acts == ["mount"]


@pytest.mark.parametrize("program", ["format", "mount", "copy", "unmount", "set_label"])
async def test_w20_a_command_that_fails_ends_it(machine: FakeDisks, program: str) -> None:
    """Contract 8.3, 9 W20: no failure is passed over, the label is not there, nothing stays mounted; a repetition succeeds."""
    found = machine.add(FakeDisk(disk(1)))
    machine.fail = {program}
    with pytest.raises(ProgramFailed, match=program):
        await prepare(machine)
    assert found.signatures != COMPLETE
    assert [mount for mount in machine.mounts if mount.disk is found] == []
    assert not (machine.paths.root / "run/gardener-node-agent/kubelet-data-volume").exists()
    machine.fail = set()
    await prepare(machine)
    assert_ready(machine, found)


@pytest.mark.parametrize("program", ["format", "mount", "set_label"])
async def test_w20_a_command_without_effect_is_noticed(machine: FakeDisks, program: str) -> None:
    """Contract 8.3, 9 W20: the label is verified after formatting, and that the device is where it was mounted."""
    found = machine.add(FakeDisk(disk(1)))
    machine.idle = {program}
    with pytest.raises(VolumeError, match=r"not what it was made|not where it was mounted"):
        await prepare(machine)
    assert found.signatures != COMPLETE
    machine.idle = set()
    await prepare(machine)
    assert_ready(machine, found)


@pytest.mark.parametrize("after", [False, True])
async def test_w20_a_run_killed_at_any_act_is_completed_by_the_next(tmp_path: Path, after: bool) -> None:
    """Contract 8.3, 9 W20: whatever a kill leaves, the next run ends with all content on the volume; the label is the commit."""
    for act in count(1):
        root = tmp_path / str(act)
        root.mkdir()
        machine = FakeDisks(root, CONTENT)
        found = machine.add(FakeDisk(disk(1)))
        machine.kill = (act, after)
        try:
            await prepare(machine)
            break
        except Killed:
            assert found.signatures != COMPLETE or found.files == CONTENT
        machine.kill = None
        await prepare(machine)
        assert_ready(machine, found)
    assert act > 8


async def test_an_unfinished_disk_is_taken_before_another_empty_one(machine: FakeDisks) -> None:
    """Contract 8.3: after a kill the same disk is formatted again, not a second one."""
    other = machine.add(FakeDisk(disk(1)))
    unfinished = machine.add(FakeDisk(disk(2), UNFINISHED, {"half": "copied"}))
    await prepare(machine)
    assert_ready(machine, unfinished)
    assert other.signatures == Signatures()


REFUSED = {
    "file system": FakeDisk(disk(1), Signatures("xfs")),
    "other label": FakeDisk(disk(1), Signatures("ext4", "DATA")),
    "our unfinished label on something else": FakeDisk(disk(1), Signatures("vfat", "KUBEDEV-NEW")),
    "partition table": FakeDisk(disk(1), Signatures(partition_table="dos")),
    "several signatures": FakeDisk(disk(1), Signatures(ambivalent=True)),
    "unreadable": FakeDisk(disk(1), None),
    "read-only": FakeDisk(disk(1, read_only=True)),
    "holders": FakeDisk(disk(1, holders=("dm-0",))),
    "in use": FakeDisk(disk(1), held=True),
    "too small": FakeDisk(disk(1, size_bytes=GIB - 512)),
    "too large": FakeDisk(disk(1, size_bytes=GIB + 512)),
    "no disk": FakeDisk(disk(1, whole_disk=False)),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_w20_a_device_that_is_not_empty_and_free_is_refused(machine: FakeDisks, case: str) -> None:
    """Contract 8.3, 9 W20: mounted, held, signed, read-only, other size: such a device is never formatted, and that is fatal."""
    refused = REFUSED[case]
    machine.add(refused)
    with pytest.raises(VolumeError, match="no empty disk of this size"):
        await prepare(machine)
    assert machine.acts == []
    fitting = machine.add(FakeDisk(disk(2)))
    await prepare(machine)
    assert_ready(machine, fitting)


@pytest.mark.parametrize("number", ["8:16", "8:17"])
async def test_w20_a_device_is_refused_that_is_mounted_with_one_of_its_partitions(
    machine: FakeDisks, number: str
) -> None:
    """Contract 8.3, 9 W20: a disk is refused if it or one of its partitions is mounted; the error names the mount point."""
    machine.add(FakeDisk(disk(1, partitions=("8:17",))))
    partition = FakeDisk(disk(7, whole_disk=False, number=number))
    machine.mount_somewhere(partition, Path("/data"))
    with pytest.raises(VolumeError) as caught:
        await prepare(machine)
    assert "/dev/sdb is mounted at /data" in str(caught.value)
    assert machine.acts == []


async def test_the_error_tells_why_each_disk_of_the_size_was_refused(machine: FakeDisks) -> None:
    """Contract 8.3: `no device` is fatal; the message has size, each candidate and its problem."""
    machine.add(FakeDisk(disk(1), Signatures("xfs")))
    machine.add(FakeDisk(disk(2, read_only=True)))
    with pytest.raises(VolumeError) as caught:
        await prepare(machine)
    assert str(caught.value) == (
        "no empty disk of this size (sizeBytes=1073741824, "
        "refused=/dev/sda has partition table gpt, is mounted at /; /dev/sdb has xfs; /dev/sdc is read-only)"
    )


async def test_of_several_labelled_devices_the_mounted_one_counts_then_the_one_of_the_size(machine: FakeDisks) -> None:
    """Contract 8.3: a second device with the label, a restored copy say, does not confuse a node that runs."""
    first = machine.add(FakeDisk(disk(1, size_bytes=3 * GIB), COMPLETE))
    second = machine.add(FakeDisk(disk(2), COMPLETE, dict(CONTENT)))
    await prepare(machine)
    assert_ready(machine, second)
    machine.mounts = machine.mounts[:1]
    machine.mount_somewhere(first, machine.paths.kubelet)
    await prepare(machine)
    assert machine.acts == ["mount"]


async def test_several_labelled_devices_are_an_error_if_nothing_tells_which(machine: FakeDisks) -> None:
    """Contract 8.3: it is not guessed; the message names the devices and what to do."""
    machine.add(FakeDisk(disk(1), COMPLETE))
    machine.add(FakeDisk(disk(2), COMPLETE))
    with pytest.raises(VolumeError, match="remove the label of all but one") as caught:
        await prepare(machine)
    assert "/dev/sdb, /dev/sdc" in str(caught.value)


async def test_the_paths_of_a_multipath_device_do_not_count(machine: FakeDisks) -> None:
    """Contract 8.3: what is only a part of a labelled device is passed over for the device itself."""
    machine.add(FakeDisk(disk(1, holders=("dm-0",)), COMPLETE))
    machine.add(FakeDisk(disk(2, holders=("dm-0",)), COMPLETE))
    whole = machine.add(FakeDisk(disk(3, whole_disk=False), COMPLETE, dict(CONTENT)))
    await prepare(machine)
    assert_ready(machine, whole)


async def test_cancelled_in_the_middle_nothing_stays_mounted(machine: FakeDisks) -> None:
    """Contract 1.7, 8.3: SIGTERM during the copy unmounts the temporary mount; the next run completes the volume."""
    found = machine.add(FakeDisk(disk(1)))
    machine.hang = {"copy"}
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await prepare(machine)
    assert [mount.disk for mount in machine.mounts if mount.disk is found] == []
    machine.hang = set()
    await prepare(machine)
    assert_ready(machine, found)
