"""Keeping and putting back what was there before us."""

from pathlib import Path

import pytest

from agents.core import aside, files
from nodeagent.host.originals import Originals


def test_taking_back_is_repeatable_until_it_is_dropped(tmp_path: Path) -> None:
    """Crash safety: a kill after the original is back, and everything again."""
    path = tmp_path / "etc/a"
    path.parent.mkdir()
    path.write_text("original")
    originals = Originals(folder=tmp_path / "kept", root=tmp_path)
    originals.keep(["/etc/a", "/etc/missing"])
    files.write_atomic(path, b"ours", mode=0o600)
    for _ in range(2):
        assert Originals(folder=tmp_path / "kept", root=tmp_path).take_back(path)
        assert path.read_text() == "original"
    again = Originals(folder=tmp_path / "kept", root=tmp_path)
    again.drop(but=["/etc/a"])
    assert again.paths == {"/etc/a"}
    again.drop(but=[])
    assert Originals(folder=tmp_path / "kept", root=tmp_path).paths == frozenset()
    assert path.read_text() == "original"


def test_a_damaged_ledger_is_none(tmp_path: Path) -> None:
    """State that heals: files are removed then, as every agent before us did."""
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "ledger.json").write_text("{")
    (tmp_path / "a").write_text("x")
    assert Originals(folder=folder, root=tmp_path).take_back(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_links_are_kept_as_links_and_other_things_not_at_all(tmp_path: Path) -> None:
    """A symbolic link is an original like a file; a directory is none."""
    (tmp_path / "link").symlink_to("somewhere")
    (tmp_path / "folder").mkdir()
    assert aside.keep_aside(tmp_path / "folder", tmp_path / "kept/1") is None
    assert aside.keep_aside(tmp_path / "link", tmp_path / "kept/2") is not None
    files.write_atomic(tmp_path / "link", b"ours", mode=0o600)
    assert aside.put_back(tmp_path / "kept/2", tmp_path / "link", mode=0o777)
    assert str((tmp_path / "link").readlink()) == "somewhere"
    assert not aside.put_back(tmp_path / "kept/3", tmp_path / "link", mode=0o777)


def test_another_file_system_gets_a_copy(tmp_path: Path) -> None:
    """Where no second name is possible, bytes are copied."""
    other = Path("/dev/shm") / tmp_path.name
    (tmp_path / "a").write_text("original")
    try:
        if other.parent.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("one file system")
        assert aside.keep_aside(tmp_path / "a", other / "kept") == 0o644
        files.write_atomic(tmp_path / "a", b"ours", mode=0o600)
        assert aside.put_back(other / "kept", tmp_path / "a", mode=0o644)
        assert (tmp_path / "a").read_text() == "original"
    finally:
        for path in (other / "kept",):
            path.unlink(missing_ok=True)
        if other.is_dir():
            other.rmdir()
