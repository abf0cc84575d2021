"""Emptying folders in which others wrote."""

import os
from pathlib import Path

import pytest

from agents.core.files import FileError
from agents.core.trees import remove, remove_content


def test_everything_in_the_folder_goes_and_the_folder_stays(tmp_path: Path) -> None:
    """Contract 8.4: all entries go, hidden ones, pipes and names that are no text as well; the folder itself stays."""
    folder = tmp_path / "kubelet"
    (folder / "pods/a/volumes").mkdir(parents=True)
    (folder / "pods/a/volumes/data").write_text("x")
    (folder / ".hidden").write_text("x")
    os.mkfifo(folder / "pods/pipe")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe\n")).write_text("x")
    (folder / "pods/empty").mkdir()
    assert remove_content(folder) == 3
    assert list(folder.iterdir()) == []
    assert remove_content(folder) == 0
    assert remove_content(tmp_path / "missing") == 0


def test_links_are_removed_and_never_followed(tmp_path: Path) -> None:
    """Contract 8.4: what a link leads to is not ours, be it a file, a folder or nothing."""
    folder, outside = tmp_path / "kubelet", tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep/file").write_text("kept")
    (folder / "a").mkdir(parents=True)
    for name, target in {
        "to-folder": outside,
        "a/to-deep": outside / "deep",
        "a/dangling": tmp_path / "nowhere",
    }.items():
        (folder / name).symlink_to(target)
    remove_content(folder)
    assert list(folder.iterdir()) == []
    assert (outside / "deep/file").read_text() == "kept"


def test_a_folder_a_file_and_a_link_are_removed_themselves(tmp_path: Path) -> None:
    """Whatever is there goes, what a link leads to stays, and what is gone already is no error."""
    (tmp_path / "folder/deep").mkdir(parents=True)
    (tmp_path / "folder/deep/file").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    for name in ("folder", "file", "link"):
        assert remove(tmp_path / name)
        assert not remove(tmp_path / name)
    assert not remove(tmp_path / "missing/too")
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (tmp_path / "outside/file").read_text() == "kept"


def test_kept_names_stay(tmp_path: Path) -> None:
    """Contract 8.4: names directly in the folder can be kept."""
    for name in ("config-v1.yaml", "other"):
        (tmp_path / name).write_text(name)
    assert remove_content(tmp_path, keep={"config-v1.yaml"}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["config-v1.yaml"]


def test_a_tree_deeper_than_any_stack_is_removed(tmp_path: Path) -> None:
    """A Pod can nest folders beyond the longest path and any recursion limit; that does not stop a reset."""
    folder = tmp_path / "kubelet"
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d" * 20, dir_fd=descriptor)
        inner = os.open("d" * 20, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
    os.close(descriptor)
    assert remove_content(folder) == 1
    assert list(folder.iterdir()) == []


def test_leftovers_of_an_interrupted_run_are_removed(tmp_path: Path) -> None:
    """A run that was killed leaves folders under temporary names; they are in nobody's way, and go with the next one."""
    (tmp_path / ".removed-0/x").mkdir(parents=True)
    (tmp_path / "a/b/c").mkdir(parents=True)
    assert remove_content(tmp_path) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    """It is not removed: nobody knows what it is."""
    (tmp_path / "kubelet").write_text("x")
    with pytest.raises(FileError, match="folder not opened"):
        remove_content(tmp_path / "kubelet")
