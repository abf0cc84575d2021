"""The file that the launcher reads, and the listing of what is in it."""

import hashlib
import json
import struct
from pathlib import Path

import pytest

from onefile import container, listing
from onefile.container import Layer, Start, UnpackedFile
from onefile.inputs import python_version
from tests.lab.errors import LabError

LAUNCHER = b"\x7fELF launcher"


@pytest.fixture
def layers(tmp_path: Path) -> list[Layer]:
    """Two layers with contents that are no archives."""
    found: list[Layer] = []
    for name, files in {
        "interpreter": (UnpackedFile("bin/x", 2_000_000, 0o755),),
        "x: ours": (UnpackedFile("app/nodeagent/cli.pyc", 1_000_000, 0o644), UnpackedFile("start.pyc", 10, 0o644)),
    }.items():
        packed = tmp_path / f"{len(found)}.zst"
        packed.write_bytes(name.encode() * 3)
        found.append(Layer(name, packed, files))
    return found


def write(tmp_path: Path, layers: list[Layer]) -> Path:
    """Write a program and return it."""
    launcher, output = tmp_path / "launcher", tmp_path / "x"
    launcher.write_bytes(LAUNCHER)
    start = Start("x", "bin/x", ("-I", "{root}/start.pyc"))
    container.write(output, launcher=launcher, layers=layers, start=start, stamp={"version": "v1"})
    return output


def test_the_file_can_be_read_from_its_end(tmp_path: Path, layers: list[Layer]) -> None:
    """Trailer, index with its digest, layers with theirs, launcher: each is where the one before it says."""
    output = write(tmp_path, layers)
    data = output.read_bytes()
    assert output.stat().st_mode & 0o777 == 0o755
    assert data[-16:] == b"gardener-onefile"
    offset, length = struct.unpack("<QQ", data[-64:-48])
    text = data[offset : offset + length]
    assert offset + length + 64 == len(data)
    assert hashlib.sha256(text).digest() == data[-48:-16]
    assert container.folder_name(output) == hashlib.sha256(text).hexdigest()[:32]
    index = json.loads(text)
    assert (index["version"], index["program"], index["arguments"]) == ("v1", "bin/x", ["-I", "{root}/start.pyc"])
    assert index["files"][1] == {"path": "app/nodeagent/cli.pyc", "size": 1_000_000, "mode": 0o644}
    for place, content in zip(index["layers"], (b"interpreter" * 3, b"x: ours" * 3), strict=True):
        packed = data[place["offset"] : place["offset"] + place["size"]]
        assert packed == content
        assert hashlib.sha256(packed).hexdigest() == place["sha256"]
    assert data.startswith(LAUNCHER)


def test_the_same_parts_give_the_same_bytes(tmp_path: Path, layers: list[Layer]) -> None:
    """Nothing of the time, the place or the order of a run is in the file."""
    first = write(tmp_path, layers).read_bytes()
    (tmp_path / "elsewhere").mkdir()
    assert write(tmp_path / "elsewhere", layers).read_bytes() == first
    layers[0].packed.write_bytes(b"changed")
    assert write(tmp_path, layers).read_bytes() != first


def test_the_listing_has_sizes(layers: list[Layer]) -> None:
    """Bytes packed by layer, bytes unpacked by package, and a line for each file, largest first."""
    text = listing.summary("x v1", layers, 2_500_000)
    assert text.startswith("x v1: 3 files, 3.0 MB unpacked\n")
    assert [line.split() for line in text.splitlines() if "nodeagent" in line] == [["nodeagent", "1.00"]]
    assert "launcher                   2.5" in text
    assert listing.all_files(layers).splitlines()[0] == "   2000000 0755 bin/x"


def test_the_interpreters_version_is_in_its_pin() -> None:
    """The version that distributions are fetched for is read from the go.mod, and from nowhere else."""
    text = "require github.com/kluctl/go-embed-python v0.0.0-3.14.6-20260610-1\n"
    assert python_version(text) == "3.14.6"
    with pytest.raises(LabError, match="no version"):
        python_version("module x\n")
