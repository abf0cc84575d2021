"""The kernel's mount table, read and put in order."""

from pathlib import Path

from nodeagent.host.mounts import Mount, below, on, read_mounts

TABLE = rb"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /var/lib/kubelet/pods/a/volumes/x rw shared:2 master:1 - tmpfs tmpfs rw
31 30 8:16 /sub\040dir /var/lib/kubelet/pods/a/volumes/x/in\040side rw - ext4 /dev/sdb rw
32 22 0:41 / /var/lib/kubelet/odd\134name\011tab\012line\043hash rw - tmpfs none rw
33 22 0:42 / /var/lib/kubelet-other rw - tmpfs tmpfs rw
34 22 8:32 / /var/lib/kubelet rw - ext4 /dev/sdc rw
35 34 0:43 / /var/lib/kubelet/pods/a/volumes/x rw - tmpfs tmpfs rw
this is no line of a mount table
"""
KUBELET = Path("/var/lib/kubelet")


def table(tmp_path: Path) -> list[Mount]:
    """Read the table above."""
    file = tmp_path / "mountinfo"
    file.write_bytes(TABLE)
    return read_mounts(file)


def test_w41_escapes_are_decoded(tmp_path: Path) -> None:
    """Contract 9 W41: blanks, tabulators, line feeds, backslashes and hashes in paths are decoded."""
    points = [str(mount.point) for mount in table(tmp_path)]
    assert "/var/lib/kubelet/pods/a/volumes/x/in side" in points
    assert "/var/lib/kubelet/odd\\name\ttab\nline#hash" in points
    assert table(tmp_path)[2] == Mount(
        Path("/var/lib/kubelet/pods/a/volumes/x/in side"), "8:16", "/sub dir", "ext4", "/dev/sdb"
    )


def test_w41_mounts_below_a_folder_come_deepest_first(tmp_path: Path) -> None:
    """Contract 9 W41: nested mounts before those they stand on, of two on one point the upper one; neighbours do not count."""
    assert [str(mount.point.relative_to(KUBELET)) for mount in below(table(tmp_path), KUBELET)] == [
        "pods/a/volumes/x/in side",
        "pods/a/volumes/x",
        "pods/a/volumes/x",
        "odd\\name\ttab\nline#hash",
    ]
    devices = [mount.device for mount in below(table(tmp_path), KUBELET)]
    assert devices[1:3] == ["0:43", "0:40"]


def test_what_is_mounted_on_a_point_is_the_uppermost(tmp_path: Path) -> None:
    """The mount that is to be seen at a path is the last one made there."""
    found = on(table(tmp_path), KUBELET / "pods/a/volumes/x")
    assert found is not None
    assert found.device == "0:43"
    assert on(table(tmp_path), Path("/nowhere")) is None
