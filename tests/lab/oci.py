"""Container images made in Python: layers, configuration and manifest as bytes, without any container tool; and as layouts on disk."""

import gzip
import hashlib
import io
import itertools
import json
import platform
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}
LAYOUT_MARK = b'{"imageLayoutVersion": "1.0.0"}'
_INDEX = "application/vnd.oci.image.index.v1+json"
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
    def build(
        cls,
        *layers: Sequence[Entry],
        compress: bool = True,
        level: int = 1,
        config: Mapping[str, object] | None = None,
        created: str | None = None,
    ) -> "Image":
        """Make an image; the same arguments give the same digest.

        Args:
            layers: entries of each layer, lowest first.
            compress: whether the layers are compressed.
            level: how much. The fastest is for tests: what matters there is that machines have to unpack it.
            config: user, entrypoint, labels and the like, as in the specification.
            created: time that it claims to be from, RFC 3339.
        """
        tars = [_tar(entries) for entries in layers]
        packed = [_layer(tar, compress=compress, level=level) for tar in tars]
        configuration = {
            **({"created": created} if created else {}),
            "architecture": _ARCHITECTURE.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": config or {},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars]},
        }
        settings = Blob(json.dumps(configuration).encode(), _CONFIG)
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": settings.descriptor(),
            "layers": [layer.descriptor() for layer in packed],
        }
        files = {
            f"/{entry.path}": hashlib.sha256(entry.data).hexdigest()
            for entry in itertools.chain(*layers)
            if entry.kind == "file"
        }
        return cls(Blob(json.dumps(manifest).encode(), _MANIFEST), (settings, *packed), files)

    def write_layout(self, folder: Path, tag: str) -> None:
        """Write it as an OCI image layout; a folder that is there already is replaced."""
        shutil.rmtree(folder, ignore_errors=True)
        blobs = folder / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        for blob in (self.manifest, *self.blobs):
            (blobs / blob.digest.removeprefix("sha256:")).write_bytes(blob.content)
        index = self.index({"org.opencontainers.image.ref.name": tag})
        (folder / "index.json").write_bytes(index)
        (folder / "oci-layout").write_bytes(LAYOUT_MARK)

    def index(self, annotations: Mapping[str, str]) -> bytes:
        """Return the `index.json` of a layout with this image alone."""
        entry = {**self.manifest.descriptor(), "annotations": dict(annotations)}
        return json.dumps({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [entry]}).encode()

    @classmethod
    def read_layout(cls, folder: Path) -> "Image":
        """Return the image of a layout that has one."""

        def blob(descriptor: Mapping[str, str]) -> Blob:
            path = folder / "blobs" / "sha256" / descriptor["digest"].removeprefix("sha256:")
            return Blob(path.read_bytes(), descriptor["mediaType"])

        (entry,) = json.loads((folder / "index.json").read_text())["manifests"]
        manifest = blob(entry)
        parts = json.loads(manifest.content)
        layers = [blob(one) for one in parts["layers"]]
        files: dict[str, str] = {}
        for layer in layers:
            with tarfile.open(fileobj=io.BytesIO(layer.content)) as archive:
                for member in archive:
                    if (content := archive.extractfile(member) if member.isfile() else None) is not None:
                        files[f"/{member.name}"] = hashlib.sha256(content.read()).hexdigest()
        return cls(manifest, (blob(parts["config"]), *layers), files)


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


def _layer(tar: bytes, *, compress: bool, level: int) -> Blob:
    return Blob(gzip.compress(tar, compresslevel=level, mtime=0), f"{_LAYER}+gzip") if compress else Blob(tar, _LAYER)
