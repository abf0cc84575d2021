"""Paths of an image stay in the image."""

import os
from pathlib import Path

import pytest

from nodeagent.host.image_files import ImageFileError, NotInImage, open_file


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A mounted image, with something of the host's beside it."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host/secret").write_bytes(b"host")
    root = tmp_path / "mount"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/tool").write_bytes(b"tool")
    return root


def read(root: Path, path: str) -> bytes:
    """Read a file of the image."""
    with open_file(root, path) as descriptor:
        return os.read(descriptor, 100)


@pytest.mark.parametrize("path", ["/usr/bin/tool", "usr/bin/tool", "//usr/./bin//tool"])
def test_a_path_is_relative_to_the_image(image: Path, path: str) -> None:
    """Contract 6.16: with or without a leading slash, it is the image's file."""
    assert read(image, path) == b"tool"


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("tool", "usr/bin/tool"),
        ("tool", "/usr/bin/tool"),
        ("usr/tool", "../usr/bin/tool"),
        ("usr/tool", "../../../../../usr/bin/tool"),
        ("usr/bin/other", "/usr/../usr/bin/./tool"),
    ],
)
def test_links_mean_what_they_mean_in_a_container(image: Path, link: str, target: str) -> None:
    """Contract 9 W8: relative, absolute and too many `..`: a link is followed below the mount, the root's parent is the root."""
    (image / link).symlink_to(target)
    assert read(image, link) == b"tool"


def test_a_linked_directory_is_entered(image: Path) -> None:
    """Contract 9 W8: a link in the middle of the path may lead to a directory of the image; `..` after it leaves that one."""
    (image / "bin").symlink_to("usr/bin")
    (image / "up").symlink_to("bin/../bin/tool")
    assert read(image, "/bin/tool") == b"tool"
    assert read(image, "/up") == b"tool"


@pytest.mark.parametrize("target", ["{host}/secret", "../host/secret", "../../host/secret"])
def test_a_link_out_of_the_image_finds_nothing(image: Path, target: str) -> None:
    """Contract 9 W8: what lies beside the mount is not in the image, whatever a link says."""
    (image / "link").symlink_to(target.format(host=image.parent / "host"))
    (image / "folder").symlink_to(target.format(host=image.parent / "host").removesuffix("/secret"))
    for path in ("/link", "/folder/secret"):
        with pytest.raises(NotInImage):
            read(image, path)


@pytest.mark.parametrize("path", ["../host/secret", "/usr/../../host/secret", "/usr/bin/..", "..", "usr\0bin"])
def test_dots_in_the_path_itself_are_refused(image: Path, path: str) -> None:
    """Contract 9 W8: `..` is refused even where it would stay inside, and so is a path that is none."""
    with pytest.raises(ImageFileError, match="leads out"):
        read(image, path)


@pytest.mark.parametrize("path", ["/", "", "/usr", "/pipe", "/usr/bin/", "/device"])
def test_only_regular_files_are_opened(image: Path, path: str) -> None:
    """Contract 6.16: a directory, the root itself, a pipe and a device are refused; a pipe does not keep us waiting."""
    os.mkfifo(image / "pipe")
    (image / "device").symlink_to("pipe")
    with pytest.raises(ImageFileError, match="not a regular file"):
        read(image, path)


@pytest.mark.parametrize("path", ["/none", "/usr/none/tool", "/usr/bin/tool/more"])
def test_what_is_not_there_is_told_apart(image: Path, path: str) -> None:
    """Contract 6.16: a missing file, a missing directory and a file in place of one: the image has no such file."""
    with pytest.raises(NotInImage) as caught:
        read(image, path)
    assert caught.value.fields["file"] == path


def test_links_in_circles_end(image: Path) -> None:
    """Contract 9 W8: a link to itself is an error, not a loop."""
    (image / "a").symlink_to("b")
    (image / "b").symlink_to("a")
    with pytest.raises(ImageFileError, match="symbolic links"):
        read(image, "/a")


def test_nothing_stays_open(image: Path) -> None:
    """Contract 9 W33: neither a success nor a failure leaves a descriptor."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    read(image, "/usr/bin/tool")
    with pytest.raises(NotInImage):
        read(image, "/usr/bin/none")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
