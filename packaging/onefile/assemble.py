"""Makes one layer, under the interpreter that will run it: modules compiled, all in a tar archive, that in a zstd frame.

Only the standard library is there. One process makes one layer, in the order of the names: what Python writes into a
compiled module depends on what was compiled before it. Input is JSON on stdin: `output`, `level`, and `entries` with
target, source, display name (of modules, for tracebacks) and mode. Output is the archive and, beside it, a list of its files.
"""

import importlib.util
import io
import json
import marshal
import sys
import tarfile
from pathlib import Path

# `from compression import zstd` came with Python 3.14, which is what runs this.
from compression import zstd  # type: ignore[import-not-found,unused-ignore]

_UNCHECKED_HASH = 1


def compiled(source: bytes, name: str) -> bytes:
    """Return a compiled module without docstrings and assertions; no source is looked for when it is loaded."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=2)
    head = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH.to_bytes(4, "little") + importlib.util.source_hash(source)
    return head + marshal.dumps(code)


def main() -> None:
    """Make the layer."""
    order = json.load(sys.stdin)
    archive, files = io.BytesIO(), []
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for entry in sorted(order["entries"], key=lambda entry: entry["target"]):
            data = Path(entry["source"]).read_bytes()
            if entry["display"]:
                data = compiled(data, entry["display"])
            header = tarfile.TarInfo(entry["target"])
            header.size, header.mode, header.mtime = len(data), entry["mode"], 1
            tar.addfile(header, io.BytesIO(data))
            files.append({"path": entry["target"], "size": len(data), "mode": entry["mode"]})
    output = Path(order["output"])
    settings = {zstd.CompressionParameter.compression_level: order["level"], zstd.CompressionParameter.checksum_flag: 1}
    output.write_bytes(zstd.compress(archive.getvalue(), options=settings))
    output.with_suffix(".json").write_text(json.dumps(files))


main()
