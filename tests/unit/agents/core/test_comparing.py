"""Files of which it is known what they should hold are compared without believing their size."""

import os
from hashlib import sha256
from pathlib import Path

import pytest

from agents.core import comparing
from agents.core.files import FileError, NotRegularFile

CONTENT = os.urandom(300_000)


def test_a_file_holds_exactly_its_bytes(tmp_path: Path) -> None:
    """Equal ones in several pieces; one differing byte, one more and one less are seen; missing is None."""
    path = tmp_path / "f"
    assert comparing.holds(path, CONTENT) is None
    path.write_bytes(CONTENT)
    assert comparing.holds(path, CONTENT) is True
    assert comparing.holds(path, CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])) is False
    assert (comparing.holds(path, CONTENT[:-1]), comparing.holds(path, CONTENT + b"x")) == (False, False)
    path.write_bytes(b"")
    assert comparing.holds(path, b"") is True


def test_a_huge_file_is_told_by_its_size(tmp_path: Path) -> None:
    """A terabyte is neither read nor hashed; what may be ours has its SHA-256."""
    path = tmp_path / "f"
    path.write_bytes(CONTENT)
    assert comparing.described(path) == sha256(CONTENT).hexdigest()
    os.truncate(path, 2**40)
    assert (comparing.holds(path, CONTENT), comparing.described(path)) == (False, f"{2**40} bytes")
    path.unlink()
    assert comparing.described(path) == "nothing"


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """Contract 6.5: a directory, a pipe and a link in the place of a file are no content."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("target")
    for name in ("folder", "pipe"):
        with pytest.raises(NotRegularFile):
            comparing.holds(tmp_path / name, b"")
    with pytest.raises(FileError):
        comparing.holds(tmp_path / "link", b"")


def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """What fails inside is the file's error too, and names it."""
    path = tmp_path / "f"
    path.write_bytes(CONTENT)

    def read_on() -> None:
        with comparing.opened(path) as file:
            assert file is not None
            os.truncate(path, 10)
            list(file.pieces())

    with pytest.raises(FileError, match=str(path)):
        read_on()
