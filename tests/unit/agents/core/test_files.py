"""File work: whole or not at all, and never where somebody else points us."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from agents.core import files
from agents.core.files import Batch, FileError, NotRegularFile, OpenFile, TooLarge, UnsafePath


def mode_of(path: Path) -> int:
    """Permission bits."""
    return stat.S_IMODE(path.lstat().st_mode)


def leftovers(path: Path) -> list[str]:
    """Temporary files anywhere below."""
    return [found.name for found in path.rglob("*.tmp")]


def test_write_creates_parents_and_sets_mode_despite_the_umask(tmp_path: Path) -> None:
    """Contract 9 W23: the file gets exactly its mode, new parent directories get 0755, whatever the umask says."""
    previous = os.umask(0o077)
    try:
        assert files.write_atomic(tmp_path / "a/b/c", b"x", mode=0o644) is True
    finally:
        os.umask(previous)
    assert (tmp_path / "a/b/c").read_bytes() == b"x"
    assert mode_of(tmp_path / "a/b/c") == 0o644
    assert mode_of(tmp_path / "a/b") == 0o755
    assert leftovers(tmp_path) == []


def test_w02_write_leaves_an_equal_file_alone(tmp_path: Path) -> None:
    """Contract 9 W2: unchanged content is not rewritten: same inode, and the answer is False."""
    path = tmp_path / "f"
    files.write_atomic(path, b"x", mode=0o600)
    inode = path.stat().st_ino
    assert files.write_atomic(path, b"x", mode=0o600) is False
    assert path.stat().st_ino == inode


def test_write_corrects_only_the_mode_when_content_is_equal(tmp_path: Path) -> None:
    """A wrong mode alone is a change, set at once, and keeps the inode; it is told apart from new content."""
    path = tmp_path / "f"
    files.write_atomic(path, b"x", mode=0o600)
    inode = path.stat().st_ino
    assert files.write_atomic(path, b"x", mode=0o640) is True
    assert (mode_of(path), path.stat().st_ino) == (0o640, inode)
    with Batch() as batch:
        assert batch.stage(path, b"x", mode=0o600) is files.Change.MODE
        assert batch.stage(path, b"x", mode=0o600) is files.Change.NONE
        assert batch.stage(path, b"y", mode=0o600) is files.Change.CONTENT


def test_write_honours_only_the_nine_permission_bits(tmp_path: Path) -> None:
    """Contract 6.5: only the nine permission bits have an effect."""
    files.write_atomic(tmp_path / "f", b"x", mode=0o4755)
    assert mode_of(tmp_path / "f") == 0o755


def test_write_replaces_a_link_and_never_follows_it(tmp_path: Path) -> None:
    """Contract 6.5, Appendix C (files): the last component is replaced: the link's target keeps its content."""
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    files.write_atomic(tmp_path / "link", b"x", mode=0o600)
    assert (tmp_path / "target").read_bytes() == b"precious"
    assert not (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_write_refuses_a_target_that_is_no_regular_file(tmp_path: Path, kind: str) -> None:
    """Contract 6.5, Appendix C (files): an existing target that is not a regular file is an error that names the path."""
    path = tmp_path / "f"
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    with pytest.raises(NotRegularFile) as caught:
        files.write_atomic(path, b"x", mode=0o600)
    assert caught.value.fields["path"] == str(path)
    assert leftovers(tmp_path) == []
    if kind == "pipe":
        with pytest.raises(FileError):
            files.read_optional(path)


def test_write_follows_a_link_of_root_in_a_directory_of_root(tmp_path: Path) -> None:
    """A directory link that only root could have placed is followed, relative and absolute ones, with `..` inside."""
    (tmp_path / "real/deep").mkdir(parents=True)
    (tmp_path / "absolute").symlink_to(tmp_path / "real")
    (tmp_path / "real/deep/up").symlink_to("../deep")
    files.write_atomic(tmp_path / "absolute/deep/up/f", b"x", mode=0o600)
    assert (tmp_path / "real/deep/f").read_bytes() == b"x"


def test_write_refuses_a_link_in_a_directory_that_others_may_write(tmp_path: Path) -> None:
    """A link on the way is not followed if somebody else could have placed it: nothing is written through it."""
    (tmp_path / "open").mkdir()
    (tmp_path / "real").mkdir()
    (tmp_path / "open/link").symlink_to(tmp_path / "real")
    (tmp_path / "open").chmod(0o1777)
    with pytest.raises(UnsafePath):
        files.write_atomic(tmp_path / "open/link/f", b"x", mode=0o600)
    assert list((tmp_path / "real").iterdir()) == []


def test_write_refuses_a_loop_of_links(tmp_path: Path) -> None:
    """Links that point at each other end in an error, not in a hang."""
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(FileError, match="not written"):
        files.write_atomic(tmp_path / "a/f", b"x", mode=0o600)


def test_write_names_a_file_on_the_way(tmp_path: Path) -> None:
    """A regular file where a directory should be is an error with the reason."""
    (tmp_path / "f").write_bytes(b"x")
    with pytest.raises(FileError) as caught:
        files.write_atomic(tmp_path / "f/g", b"x", mode=0o600)
    assert caught.value.errno == errno.ENOTDIR


@pytest.mark.parametrize("path", ["relative", "/a/../b", "/"])
def test_write_refuses_paths_that_are_not_absolute_and_clean(path: str) -> None:
    """`..`, relative paths and the root itself are refused before anything is opened."""
    with pytest.raises(UnsafePath):
        files.write_atomic(Path(path), b"x", mode=0o600)


def test_write_removes_its_stale_temporary_file(tmp_path: Path) -> None:
    """Contract 3, Appendix C (files): a temporary file that a kill left is no obstacle, also when it is a link to elsewhere."""
    (tmp_path / "elsewhere").write_bytes(b"precious")
    (tmp_path / ".f.tmp").symlink_to(tmp_path / "elsewhere")
    files.write_atomic(tmp_path / "f", b"x", mode=0o600)
    assert (tmp_path / "elsewhere").read_bytes() == b"precious"
    assert leftovers(tmp_path) == []


def test_stale_temporaries_are_removed_on_request(tmp_path: Path) -> None:
    """Contract 3, Appendix C (files): only the temporary names of the given files go; somebody else's `.tmp` stays."""
    (tmp_path / ".f.tmp").write_bytes(b"half")
    (tmp_path / ".other.tmp").write_bytes(b"not ours")
    assert files.remove_stale_temporaries([tmp_path / "f", tmp_path / "missing/g"]) == [tmp_path / ".f.tmp"]
    assert leftovers(tmp_path) == [".other.tmp"]


def test_a_name_of_255_bytes_can_be_written(tmp_path: Path) -> None:
    """The longest legal name has a temporary name that fits."""
    path = tmp_path / ("n" * 255)
    files.write_atomic(path, b"x", mode=0o600)
    assert path.read_bytes() == b"x"
    assert len(files.temporary_name(path.name)) <= 255


def test_batch_writes_all_and_reports_the_one_that_failed(tmp_path: Path) -> None:
    """An item that cannot be staged fails alone; the others are written by the same commit."""
    (tmp_path / "directory").mkdir()
    with Batch() as batch:
        assert batch.stage(tmp_path / "a", b"1", mode=0o600)
        with pytest.raises(NotRegularFile):
            batch.stage(tmp_path / "directory", b"2", mode=0o600)
        assert batch.stage(tmp_path / "a", b"3", mode=0o600)
        assert len(batch) == 1
        assert not (tmp_path / "a").exists()
        assert batch.commit() == {}
    assert (tmp_path / "a").read_bytes() == b"3"


def test_batch_that_is_left_without_commit_changes_nothing(tmp_path: Path) -> None:
    """Contract 9 W2: what was staged and not committed is gone, temporary files too; until then the old content is there."""
    (tmp_path / "a").write_bytes(b"old")
    with Batch() as batch:
        batch.stage(tmp_path / "a", b"new", mode=0o600)
        assert (tmp_path / "a").read_bytes() == b"old"
    assert (tmp_path / "a").read_bytes() == b"old"
    assert leftovers(tmp_path) == []


def test_commit_reports_a_rename_that_fails(tmp_path: Path) -> None:
    """Contract 6.5, Appendix C (files): a target that became a directory meanwhile fails alone and leaves no temporary file."""
    with Batch(sync=False) as batch:
        batch.stage(tmp_path / "a", b"1", mode=0o600)
        batch.stage(tmp_path / "b", b"1", mode=0o600)
        (tmp_path / "a").mkdir()
        assert list(batch.commit()) == [tmp_path / "a"]
    assert (tmp_path / "b").read_bytes() == b"1"
    assert leftovers(tmp_path) == []


def test_a_full_disk_keeps_the_old_content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Contract 9 W2: ENOSPC in the middle of a write names the path, keeps the old file and leaves no temporary file."""
    path = tmp_path / "f"
    files.write_atomic(path, b"old", mode=0o600)

    def full(_descriptor: int, _data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(FileError) as caught:
        files.write_atomic(path, b"new", mode=0o600)
    assert (caught.value.errno, caught.value.fields["path"]) == (errno.ENOSPC, str(path))
    assert path.read_bytes() == b"old"
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("failing", ["file", "directory"])
def test_w03_a_failing_fsync_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failing: str) -> None:
    """Contract 9 W3: a file counts as written only when file and directory were synced."""
    fsync = os.fsync

    def broken(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) == (failing == "directory"):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(FileError):
        files.write_atomic(tmp_path / "f", b"x", mode=0o600)
    assert leftovers(tmp_path) == []


def test_w03_a_removal_counts_only_once_its_directory_was_synced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Contract 9 W3: also a file that was removed does not come back after a power cut."""
    (tmp_path / "f").write_bytes(b"x")

    def broken(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(FileError):
        files.remove(tmp_path / "f")


def test_read_optional_tells_missing_from_unreadable(tmp_path: Path) -> None:
    """Missing is None, also with a missing parent; a directory is an error."""
    assert files.read_optional(tmp_path / "none/f") is None
    with pytest.raises(NotRegularFile):
        files.read_optional(tmp_path)
    (tmp_path / "f").write_bytes(b"x")
    assert files.read_optional(tmp_path / "f") == b"x"


@pytest.mark.parametrize("read", [files.read_optional, files.read_mounted])
def test_a_directory_in_place_of_a_file_leaves_nothing_open(
    tmp_path: Path, read: Callable[[Path], bytes | None]
) -> None:
    """What is no file is refused without a descriptor left: a look at it is repeated for as long as the agent runs."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(NotRegularFile):
            read(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_remove_takes_the_link_and_not_its_target(tmp_path: Path) -> None:
    """Removing is idempotent, removes a link itself, and refuses a directory."""
    (tmp_path / "f").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "f")
    assert files.remove(tmp_path / "link") is True
    assert (tmp_path / "f").exists()
    assert files.remove(tmp_path / "f") is True
    assert files.remove(tmp_path / "f") is False
    assert files.remove(tmp_path / "none/f") is False
    (tmp_path / "directory").mkdir()
    with pytest.raises(FileError):
        files.remove(tmp_path / "directory")


def test_remove_directory_only_if_empty(tmp_path: Path) -> None:
    """A directory with something in it stays, a missing one is fine, a refused one is an error."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"x")
    assert files.remove_directory_if_empty(tmp_path / "d") is False
    (tmp_path / "d/f").unlink()
    assert files.remove_directory_if_empty(tmp_path / "d") is True
    assert files.remove_directory_if_empty(tmp_path / "d") is False
    with pytest.raises(FileError):
        files.remove_directory_if_empty(Path("/proc"))
    with pytest.raises(FileError):
        files.remove(tmp_path / ("x" * 300))


def test_ensure_directory_sets_the_mode(tmp_path: Path) -> None:
    """Contract 9 W22: the directory ends with the mode that was asked for, also if it existed with another one."""
    (tmp_path / "d").mkdir(mode=0o000)
    files.ensure_directory(tmp_path / "d", mode=0o700)
    assert mode_of(tmp_path / "d") == 0o700
    files.ensure_directory(tmp_path / "e/f", mode=0o700)
    assert (mode_of(tmp_path / "e"), mode_of(tmp_path / "e/f")) == (0o755, 0o700)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError):
        files.ensure_directory(tmp_path / "file", mode=0o700)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[OpenFile]:
    """An open file of two and a half pieces."""
    path = tmp_path / "source"
    path.write_bytes(os.urandom(2_621_440))
    with path.open("rb") as file:
        yield OpenFile(file.fileno(), 2_621_440)


def test_an_open_file_is_copied_in_pieces(tmp_path: Path, source: OpenFile) -> None:
    """Contract 6.5, Appendix C (files): bytes and mode arrive; equal ones are not written again, and one differing byte is found."""
    target = tmp_path / "target"
    with Batch() as batch:
        assert batch.stage(target, source, mode=0o755) is files.Change.CONTENT
        assert batch.commit() == {}
        assert batch.stage(target, source, mode=0o755) is files.Change.NONE
        assert batch.stage(target, source, mode=0o700) is files.Change.MODE
        content = target.read_bytes()
        assert content == (tmp_path / "source").read_bytes()
        target.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert batch.stage(target, source, mode=0o700) is files.Change.CONTENT
    assert leftovers(tmp_path) == []


def test_a_copy_that_is_given_up_leaves_nothing(tmp_path: Path, source: OpenFile) -> None:
    """Contract 6.5, Appendix C (files): what ends a copy in the middle, any exception, reaches the caller; the old file stays and nothing lies beside it."""
    (tmp_path / "target").write_bytes(b"old")
    calls = count()

    def proceed() -> None:
        if next(calls):
            raise KeyboardInterrupt

    with Batch() as batch, pytest.raises(KeyboardInterrupt):
        batch.stage(tmp_path / "target", replace(source, proceed=proceed), mode=0o755)
    assert (tmp_path / "target").read_bytes() == b"old"
    assert leftovers(tmp_path) == []


def test_a_source_that_became_shorter_is_an_error(tmp_path: Path, source: OpenFile) -> None:
    """A copy never has other bytes than its source had: one that ends early fails and leaves nothing."""
    os.truncate(tmp_path / "source", 10)
    with Batch() as batch, pytest.raises(FileError):
        batch.stage(tmp_path / "target", source, mode=0o755)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("read", [files.read_optional, files.read_mounted])
def test_no_more_is_read_than_the_limit(tmp_path: Path, read: Callable[..., bytes | None]) -> None:
    """A file of the limit's size is read, a larger one is an error that names path, size and limit; also without a limit of one's own."""
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    assert read(path, limit=5) == b"12345"
    with pytest.raises(TooLarge) as caught:
        read(path, limit=4)
    assert caught.value.fields == {"path": str(path), "size": 5, "limit": 4}
    os.truncate(path, 2**40)
    with pytest.raises(TooLarge, match=str(2**40)):
        read(path)


def test_a_file_that_the_kernel_makes_up_is_read_to_its_end() -> None:
    """Its size is said to be 0, and it is held to the limit all the same."""
    path = Path("/proc/self/maps")
    assert len(files.read_optional(path) or b"") > 100
    with pytest.raises(TooLarge):
        files.read_optional(path, limit=100)
