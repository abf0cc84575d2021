"""Container images made in Python: layers, configuration and manifest as bytes, without any container tool."""

import gzip
import hashlib
import io
import itertools
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_TAR_TYPES = {
    "file": tarfile.REGTYPE,
    "directory": tarfile.DIRTYPE,
    "link": tarfile.SYMTYPE,
    "pipe": tarfile.FIFOTYPE,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a layer.

    Attributes:
        path: in the image, without a leading slash.
        data: bytes of a file, target of a link.
        mode: permission bits.
        kind: what it is.
    """

    path: str
    data: bytes = field(default=b"", repr=False)
    mode: int = 0o755
    kind: Literal["file", "directory", "link", "pipe"] = "file"


@dataclass(frozen=True, slots=True)
class Blob:
    """Content that is addressed by its digest."""

    content: bytes = field(repr=False)
    media_type: str

    @property
    def digest(self) -> str:
        """Return `sha256:...`."""
        return f"sha256:{hashlib.sha256(self.content).hexdigest()}"

    def descriptor(self) -> dict[str, object]:
        """Return how a manifest refers to it."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": len(self.content)}


@dataclass(frozen=True, slots=True)
class Image:
    """An image for this host's platform.

    Attributes:
        manifest: what a tag or a digest refers to.
        blobs: all that the manifest refers to.
        files: SHA-256 of each regular file, by its path with a leading slash.
    """

    manifest: Blob
    blobs: tuple[Blob, ...]
    files: Mapping[str, str]

    @classmethod
    def build(cls, *layers: Sequence[Entry], compress: bool = True) -> "Image":
        """Make an image from the entries of its layers, lowest first; the same entries give the same digest."""
        tars = [_tar(entries) for entries in layers]
        packed = [_layer(tar, compress=compress) for tar in tars]
        configuration = {
            "architecture": _ARCHITECTURE.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars]},
        }
        config = Blob(json.dumps(configuration).encode(), _CONFIG)
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": config.descriptor(),
            "layers": [layer.descriptor() for layer in packed],
        }
        files = {
            f"/{entry.path}": hashlib.sha256(entry.data).hexdigest()
            for entry in itertools.chain(*layers)
            if entry.kind == "file"
        }
        return cls(Blob(json.dumps(manifest).encode(), _MANIFEST), (config, *packed), files)


def _tar(entries: Sequence[Entry]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            member = tarfile.TarInfo(entry.path)
            member.type, member.mode = _TAR_TYPES[entry.kind], entry.mode
            if entry.kind == "link":
                member.linkname = entry.data.decode()
            member.size = len(entry.data) if entry.kind == "file" else 0
            archive.addfile(member, io.BytesIO(entry.data))
    return buffer.getvalue()


def _layer(tar: bytes, *, compress: bool) -> Blob:
    # The fastest level: what matters here is that machines have to unpack it.
    return Blob(gzip.compress(tar, compresslevel=1, mtime=0), f"{_LAYER}+gzip") if compress else Blob(tar, _LAYER)
