"""Unit files and drop-ins on the disk."""

from pathlib import Path

import pytest

from agents.core.files import FileError
from systemd.errors import InvalidUnit
from systemd.unitfiles import UnitFiles

UNIT = "a.service"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The machine's /etc/systemd/system."""
    path = tmp_path / "etc/systemd/system"
    path.mkdir(parents=True)
    return path


def mode(path: Path) -> int:
    """Return permission bits."""
    return path.stat().st_mode & 0o7777


def test_write_unit_and_drop_ins_with_their_modes(tmp_path: Path, folder: Path) -> None:
    """Contract 6.6: unit file and drop-ins 0600, the directory 0755; what is as wanted is not written again."""
    units = UnitFiles(root=tmp_path)
    assert units.write(UNIT, content=b"u", drop_ins={"x": b"1", "y": b"2"})
    assert (folder / UNIT).read_bytes() == b"u"
    assert mode(folder / UNIT) == 0o600
    assert mode(folder / f"{UNIT}.d") == 0o755
    assert {path.name: (path.read_bytes(), mode(path)) for path in (folder / f"{UNIT}.d").iterdir()} == {
        "x": (b"1", 0o600),
        "y": (b"2", 0o600),
    }
    assert not units.write(UNIT, content=b"u", drop_ins={"x": b"1", "y": b"2"})
    (folder / UNIT).chmod(0o644)
    assert units.write(UNIT, content=b"u", drop_ins={"x": b"1"})
    assert mode(folder / UNIT) == 0o600
    assert units.exists(UNIT)
    assert units.drop_ins(UNIT) == {"x", "y"}


def test_write_without_content_leaves_the_unit_file_alone(tmp_path: Path, folder: Path) -> None:
    """Contract 6.6.1: no content: the unit file is not touched."""
    (folder / UNIT).write_bytes(b"theirs")
    assert UnitFiles(root=tmp_path).write(UNIT, content=None, drop_ins={"x": b"1"})
    assert (folder / UNIT).read_bytes() == b"theirs"


def test_only_named_drop_ins_are_removed(tmp_path: Path, folder: Path) -> None:
    """Contract 9 W37: drop-ins of administrators stay; an empty directory goes."""
    units = UnitFiles(root=tmp_path)
    units.write(UNIT, content=b"u", drop_ins={"x": b"1", "y": b"2"})
    (folder / f"{UNIT}.d/theirs").write_bytes(b"")
    assert units.write(UNIT, content=b"u", drop_ins={"y": b"2"}, remove=["x", "y", "missing"])
    assert units.drop_ins(UNIT) == {"y", "theirs"}
    assert units.remove(UNIT, unit_file=True, drop_ins=["y"])
    assert not units.exists(UNIT)
    assert units.drop_ins(UNIT) == {"theirs"}
    (folder / f"{UNIT}.d/theirs").unlink()
    assert units.remove(UNIT, unit_file=True, drop_ins=["y"])
    assert not (folder / f"{UNIT}.d").exists()
    assert units.drop_ins(UNIT) == frozenset()
    assert not units.remove(UNIT, unit_file=True, drop_ins=["y"])


def test_unit_file_of_others_stays(tmp_path: Path, folder: Path) -> None:
    """Contract 6.6: only a unit that the OSC created is removed."""
    (folder / UNIT).write_bytes(b"theirs")
    assert not UnitFiles(root=tmp_path).remove(UNIT, unit_file=False, drop_ins=[])
    assert (folder / UNIT).exists()


def test_bad_names_change_nothing(tmp_path: Path, folder: Path) -> None:
    """Contract 9 W7: a bad name is refused before anything is written or removed."""
    units = UnitFiles(root=tmp_path)
    for bad in ({"drop_ins": {"../x": b""}}, {"drop_ins": {}, "remove": ["../x"]}):
        with pytest.raises(InvalidUnit):
            units.write(UNIT, content=b"u", **bad)
    with pytest.raises(InvalidUnit):
        units.remove(UNIT, unit_file=True, drop_ins=[".."])
    assert list(folder.iterdir()) == []


def test_directory_in_the_place_of_a_unit_file_is_an_error(tmp_path: Path, folder: Path) -> None:
    """Contract 6.5: a target that is not a regular file is an error that names it."""
    (folder / UNIT).mkdir()
    with pytest.raises(FileError, match=UNIT):
        UnitFiles(root=tmp_path).write(UNIT, content=b"u", drop_ins={})
