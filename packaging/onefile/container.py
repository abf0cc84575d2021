"""The format of a one-file program: launcher, layers, index, trailer. `packaging/launcher/content.go` reads it.

The digest of the index names the folder into which the program is unpacked. The index has the digest of each layer and the
length of each file, so it stands for all of it.
"""

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = b"gardener-onefile"


@dataclass(frozen=True, slots=True)
class UnpackedFile:
    """One file below the folder: its path, length in bytes, and permissions."""

    path: str
    size: int
    mode: int


@dataclass(frozen=True, slots=True)
class Layer:
    """A part that is packed by itself: a tar archive as one zstd frame, and the files in it."""

    name: str
    packed: Path
    files: tuple[UnpackedFile, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """What becomes of the process.

    Attributes:
        name: of the program.
        program: path of the interpreter below the folder.
        arguments: what comes before the caller's own; `{root}` stands for the folder.
    """

    name: str
    program: str
    arguments: tuple[str, ...]


def write(output: Path, *, launcher: Path, layers: Sequence[Layer], start: Start, stamp: Mapping[str, str]) -> None:
    """Write the file, executable, under a temporary name first, so that nobody ever copies half of it."""
    part = output.with_name(f".{output.name}.part")
    with part.open("wb") as file:
        file.write(launcher.read_bytes())
        places = []
        for layer in layers:
            packed = layer.packed.read_bytes()
            digest = hashlib.sha256(packed).hexdigest()
            places.append({"name": layer.name, "offset": file.tell(), "size": len(packed), "sha256": digest})
            file.write(packed)
        index = {
            **stamp,
            "name": start.name,
            "program": start.program,
            "arguments": list(start.arguments),
            "layers": places,
            "files": [
                {"path": found.path, "size": found.size, "mode": found.mode}
                for layer in layers
                for found in layer.files
            ],
        }
        text = json.dumps(index, separators=(",", ":")).encode()
        offset = file.tell()
        file.write(text)
        file.write(struct.pack("<QQ", offset, len(text)) + hashlib.sha256(text).digest() + MARK)
    part.chmod(0o755)
    part.replace(output)


def folder_name(output: Path) -> str:
    """Return the name of the folder for this version: the first half of the index's digest."""
    return output.read_bytes()[-48:-32].hex()
