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


def put(folder: Path, contents: dict[Path, bytes]) -> None:
    """Write files, making their folders."""
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert folder.exists()


def test_contents_name_unit_file_and_drop_ins(tmp_path: Path, folder: Path) -> None:
    """Contract 6.6: unit file and drop-ins have their places below /etc/systemd/system; without content only drop-ins."""
    units = UnitFiles(root=tmp_path)
    assert units.contents(UNIT, content=b"u", drop_ins={"x": b"1"}) == {
        folder / UNIT: b"u",
        folder / f"{UNIT}.d/x": b"1",
    }
    assert units.contents(UNIT, content=None, drop_ins={}) == {}


def test_only_named_drop_ins_are_removed(tmp_path: Path, folder: Path) -> None:
    """Contract 9 W37: drop-ins of administrators stay; an empty directory goes."""
    units = UnitFiles(root=tmp_path)
    put(folder, units.contents(UNIT, content=b"u", drop_ins={"x": b"1", "theirs": b""}))
    assert units.remove(UNIT, unit_file=False, drop_ins=["x", "missing"])
    assert units.exists(UNIT)
    assert [path.name for path in (folder / f"{UNIT}.d").iterdir()] == ["theirs"]
    (folder / f"{UNIT}.d/theirs").unlink()
    assert units.remove(UNIT, unit_file=True, drop_ins=["x"])
    assert not units.exists(UNIT)
    assert not (folder / f"{UNIT}.d").exists()
    assert not units.remove(UNIT, unit_file=True, drop_ins=["x"])


def test_unit_file_of_others_stays(tmp_path: Path, folder: Path) -> None:
    """Contract 6.6: only a unit that the OSC created is removed."""
    (folder / UNIT).write_bytes(b"theirs")
    assert not UnitFiles(root=tmp_path).remove(UNIT, unit_file=False, drop_ins=[])
    assert (folder / UNIT).exists()


def test_bad_names_change_nothing(tmp_path: Path, folder: Path) -> None:
    """Contract 9 W7: a bad name is refused before anything is written or removed."""
    units = UnitFiles(root=tmp_path)
    with pytest.raises(InvalidUnit):
        units.contents(UNIT, content=b"u", drop_ins={"../x": b""})
    (folder / UNIT).write_bytes(b"u")
    with pytest.raises(InvalidUnit):
        units.remove(UNIT, unit_file=True, drop_ins=[".."])
    assert (folder / UNIT).exists()


def test_directory_in_the_place_of_a_unit_file_is_an_error(tmp_path: Path, folder: Path) -> None:
    """Contract 6.5: a target that is not a regular file is an error that names it."""
    (folder / UNIT).mkdir()
    with pytest.raises(FileError, match=UNIT):
        UnitFiles(root=tmp_path).remove(UNIT, unit_file=True, drop_ins=[])
