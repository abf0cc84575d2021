"""What is in a one-file program, read as its launcher reads it: the image of gardenlet has the very same files."""

import hashlib
import io
import json
import struct
import subprocess
import tarfile
from pathlib import Path

from tests.lab.errors import LabError
from tests.lab.oci import Entry

_TRAILER_BYTES = 64
# Only the interpreter that is in the program knows zstd: ours may be older.
_DECOMPRESS = (
    "import sys; from compression import zstd; sys.stdout.buffer.write(zstd.decompress(sys.stdin.buffer.read()))"
)


def unpack(program: Path, interpreter: Path) -> list[Entry]:
    """Return the files below the program's folder.

    Raises:
        LabError: the file is damaged.
    """
    data = program.read_bytes()
    offset, length = struct.unpack("<QQ", data[-_TRAILER_BYTES : -_TRAILER_BYTES + 16])
    text = data[offset : offset + length]
    if hashlib.sha256(text).digest() != data[-_TRAILER_BYTES + 16 : -16]:
        raise LabError(f"{program.name} is damaged: run `make binary`")
    index, entries = json.loads(text), []
    for layer in index["layers"]:
        packed = data[layer["offset"] : layer["offset"] + layer["size"]]
        done = subprocess.run(
            [interpreter, "-I", "-B", "-c", _DECOMPRESS], input=packed, check=False, capture_output=True
        )
        if done.returncode != 0 or hashlib.sha256(packed).hexdigest() != layer["sha256"]:
            raise LabError(f"the layer {layer['name']} of {program.name} is damaged: run `make binary`")
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            for member in archive:
                content = archive.extractfile(member)
                entries.append(Entry(member.name, content.read() if content else b"", member.mode))
    return entries
