"""Keeping and putting back what was there before us."""

import errno
import os
import stat
from pathlib import Path

import pytest

from agents.core import aside, files
from nodeagent.host.originals import FormerUnit, Originals


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


def test_a_ledger_that_could_not_be_read_once_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Crash safety: a disk that fails for a moment is an error, and no reason to begin a ledger that knows of nothing before."""
    path, folder = tmp_path / "a", tmp_path / "kept"
    path.write_text("original")
    Originals(folder=folder, root=tmp_path).keep(["/a"])
    files.write_atomic(path, b"ours", mode=0o600)
    (tmp_path / "b").write_text("another")
    originals = Originals(folder=folder, root=tmp_path)

    def fail(path: Path) -> bytes:
        raise files.FileError("file not read", path, OSError(errno.EIO, "Input/output error"))

    with monkeypatch.context() as broken:
        broken.setattr(files, "read_optional", fail)
        with pytest.raises(files.FileError):
            originals.keep(["/b"])
    originals.keep(["/b"])
    assert Originals(folder=folder, root=tmp_path).take_back(path)
    assert path.read_text() == "original"


def test_what_is_kept_is_put_back_although_the_ledger_is_damaged(tmp_path: Path) -> None:
    """State that heals: the original itself is there, whatever became of the ledger, and also after that has been begun anew."""
    path, folder = tmp_path / "a", tmp_path / "kept"
    path.write_text("original")
    path.chmod(0o640)
    Originals(folder=folder, root=tmp_path).keep(["/a"])
    files.write_atomic(path, b"ours", mode=0o600)
    (folder / "ledger.json").write_text("{")
    assert Originals(folder=folder, root=tmp_path).has("/a")
    (tmp_path / "b").write_text("another")
    Originals(folder=folder, root=tmp_path).keep(["/b"])
    assert (folder / "ledger.json.damaged").read_text() == "{"
    originals = Originals(folder=folder, root=tmp_path)
    assert (originals.has("/a"), originals.has("/b"), originals.has("/c")) == (True, True, False)
    assert originals.take_back(path)
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("original", 0o640)


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


def _no_second_names(*_arguments: object, **_more: object) -> None:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to others")
def test_a_copy_has_owner_permissions_times_and_attributes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A /var of its own: what is restored from a copy belongs to whom it belonged to, on both ways."""
    monkeypatch.setattr(os, "link", _no_second_names)
    path = tmp_path / "etc/a"
    path.parent.mkdir()
    path.write_text("original")
    os.chown(path, 33, 34)
    path.chmod(0o4750)
    os.setxattr(path, "trusted.of-the-os", b"x")
    os.utime(path, ns=(1_000_000_001, 2_000_000_002))
    originals = Originals(folder=tmp_path / "kept", root=tmp_path)
    originals.keep(["/etc/a"])
    files.write_atomic(path, b"ours", mode=0o600)
    assert originals.take_back(path)
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (33, 34, 0o4750)
    assert (found.st_mtime_ns, os.getxattr(path, "trusted.of-the-os")) == (2_000_000_002, b"x")
    assert path.read_text() == "original"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives links to others")
def test_a_copied_link_has_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file."""
    monkeypatch.setattr(os, "link", _no_second_names)
    link = tmp_path / "link"
    link.symlink_to("somewhere")
    os.chown(link, 33, 34, follow_symlinks=False)
    originals = Originals(folder=tmp_path / "kept", root=tmp_path)
    originals.keep(["/link"])
    files.write_atomic(link, b"ours", mode=0o600)
    assert originals.take_back(link)
    assert (str(link.readlink()), link.lstat().st_uid, link.lstat().st_gid) == ("somewhere", 33, 34)


def test_attributes_that_the_file_system_cannot_hold_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes matter more than a label."""

    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(os, "link", _no_second_names)
    monkeypatch.setattr(os, "listxattr", lambda _file: ["user.a"])
    monkeypatch.setattr(os, "getxattr", lambda _file, _name: b"x")
    monkeypatch.setattr(os, "setxattr", refuse)
    (tmp_path / "a").write_text("original")
    assert aside.keep_aside(tmp_path / "a", tmp_path / "kept") == 0o644
    assert (tmp_path / "kept").read_text() == "original"
    monkeypatch.setattr(os, "listxattr", refuse)
    assert aside.put_back(tmp_path / "kept", tmp_path / "a", mode=0o644)


def test_a_note_about_a_unit_does_not_hide_its_original_after_damage(tmp_path: Path) -> None:
    """State that heals: a ledger begun anew by a note about a unit does not say that there was no file."""
    unit, folder = tmp_path / "a.service", tmp_path / "kept"
    unit.write_text("original")
    Originals(folder=folder, root=tmp_path).keep(["/a.service"])
    (folder / "ledger.json").write_text("{")
    Originals(folder=folder, root=tmp_path).note_unit("/a.service", FormerUnit(enabled=True, active=True))
    files.write_atomic(unit, b"ours", mode=0o600)
    assert Originals(folder=folder, root=tmp_path).take_back(unit)
    assert unit.read_text() == "original"
