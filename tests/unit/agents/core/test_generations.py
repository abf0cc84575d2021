"""Files with a digest and the generation before."""

from pathlib import Path

import pytest

from agents.core.files import FileError, write_atomic
from agents.core.generations import Generations, Origin

A, B, C = b"content a", b"content b", b"content c"


class Killed(Exception):
    """The process ended here."""


class Writes:
    """The real writer, until so many writes were made."""

    def __init__(self, left: int = 1000) -> None:
        self.left = left

    def __call__(self, path: Path, content: bytes, *, mode: int, sync: bool = True) -> bool:
        """Write, or be killed."""
        if self.left == 0:
            raise Killed
        self.left -= 1
        return write_atomic(path, content, mode=mode, sync=sync)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file."""
    return tmp_path / "state.yaml"


def generations(file: Path, writes: int = 1000) -> Generations:
    """Return what a new process has; it is killed after so many writes."""
    return Generations(file.parent / "kept", Writes(writes))


def test_newest_and_the_one_before_are_kept(file: Path) -> None:
    """Two copies, 0600 in a folder of our own; nothing is added to the file itself."""
    for content in (A, B, C):
        assert generations(file).write(file, content, mode=0o640)
    assert file.read_bytes() == C
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(generations(file).kept(file)) == [C, B]
    folder = file.parent / "kept"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {entry.stat().st_mode & 0o777 for entry in folder.iterdir()} == {0o600}
    assert len(list(folder.iterdir())) == 3
    assert not generations(file).write(file, C, mode=0o640)


def test_origin_tells_who_wrote_what_is_there(file: Path) -> None:
    """Ours, older ones of ours, the very first one, and what was never here."""
    for number in range(20):
        generations(file).write(file, f"{number}".encode(), mode=0o600)
    known = generations(file)
    assert known.origin(file, b"19") is Origin.OURS
    assert known.origin(file, b"18") is Origin.OLDER
    assert known.origin(file, b"0") is Origin.OLDER
    assert known.origin(file, b"5") is Origin.FOREIGN  # forgotten
    assert known.origin(file, A) is Origin.FOREIGN


def test_what_somebody_else_wrote_can_be_adopted(file: Path) -> None:
    """Contract 6.4: a file of the Go agent, without any record, is read as it is and is the newest one from then on."""
    assert generations(file).origin(file, A) is Origin.FOREIGN
    generations(file).adopt(file, A)
    generations(file).adopt(file, B)
    assert generations(file).origin(file, B) is Origin.OURS
    assert generations(file).origin(file, A) is Origin.OLDER
    generations(file).adopt(file, A)
    assert generations(file).origin(file, A) is Origin.OURS
    assert list(generations(file).kept(file)) == [A, B]


@pytest.mark.parametrize("before", [None, A, B])
def test_each_write_may_be_the_last_one(file: Path, before: bytes | None) -> None:
    """Whichever write is the last: the file is the old or the new one, it is ours and not taken for older, and can be kept."""
    ended = False
    for writes in range(10):
        for leftover in (*(file.parent / "kept").glob("*"), file):
            leftover.unlink(missing_ok=True)
        for content in (C, before) if before is not None else ():
            generations(file).write(file, content, mode=0o600)
        try:
            generations(file, writes).write(file, B, mode=0o600)
            ended = True
        except Killed:
            pass  # What the disk looks like now is the test.
        found = file.read_bytes() if file.exists() else None
        assert found in (before, B)
        known = generations(file)
        if found is not None:
            assert known.origin(file, found) is Origin.OURS
        assert all(content in (B, before, C) for content in known.kept(file))
        if before is not None:
            assert before in known.kept(file)
        assert known.write(file, B, mode=0o600) is (found != B)
        assert known.origin(file, B) is Origin.OURS
        assert next(iter(known.kept(file))) == B
        if ended:
            return
    pytest.fail("never ended")


def test_older_is_not_said_of_a_write_that_was_interrupted(file: Path) -> None:
    """The digest of the new content is on the disk before the new content is."""
    generations(file).write(file, A, mode=0o600)
    generations(file).write(file, B, mode=0o600)
    with pytest.raises(Killed):
        generations(file, 1).write(file, A, mode=0o600)
    assert generations(file).origin(file, B) is Origin.OURS
    with pytest.raises(Killed):
        generations(file, 2).write(file, A, mode=0o600)
    assert generations(file).origin(file, A) is Origin.OURS


def test_damaged_copies_and_records_do_no_harm(file: Path) -> None:
    """A torn copy is passed over; a torn record knows nothing; both are made anew."""
    for content in (A, B):
        generations(file).write(file, content, mode=0o600)
    folder = file.parent / "kept"
    for entry in folder.iterdir():
        if entry.read_bytes() == B:
            entry.write_bytes(B[:4])
    assert list(generations(file).kept(file)) == [A]
    (folder / "state.yaml.json").write_bytes(b"{")
    assert list(generations(file).kept(file)) == []
    assert generations(file).origin(file, B) is Origin.FOREIGN
    generations(file).adopt(file, B)
    assert list(generations(file).kept(file)) == [B]


def test_what_cannot_be_kept_ends_nothing(file: Path) -> None:
    """A full disk: adopting fails quietly."""

    def full(path: Path, content: bytes, *, mode: int, sync: bool = True) -> bool:
        raise FileError(f"{len(content)} bytes not written", path)

    Generations(file.parent / "kept", full).adopt(file, A)
    assert generations(file).origin(file, A) is Origin.FOREIGN


def test_a_held_file_is_as_it_was_then(file: Path) -> None:
    """Whatever replaces the file, its second name has what it held; nothing is written for that, and holding again replaces it."""
    known = generations(file, writes=0)
    assert known.held(file) is None
    for content in (A, B):
        write_atomic(file, content, mode=0o600)
        known.hold(file)
        write_atomic(file, C, mode=0o600, sync=False)
        assert known.held(file) == content
    generations(file).write(file, A, mode=0o600)
    assert known.held(file) == B
    assert (file.parent / "kept").stat().st_mode & 0o777 == 0o700
