"""Full disks; a really full one is in the machine tests."""

from pathlib import Path

from nodeagent.host.disk_space import full


def test_file_systems_that_count_nothing_are_not_full(tmp_path: Path) -> None:
    """Contract 7.5, 7.9: a path that is missing, a file system without blocks or inodes and one with room are not full."""
    assert full([tmp_path / "missing", Path("/proc"), tmp_path]) is None
