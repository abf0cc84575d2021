"""Images made in Python are what the specification says."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.lab.oci import Entry, Image


@pytest.mark.parametrize("compress", [True, False])
def test_an_image_refers_to_its_parts_by_digest_and_size(compress: bool) -> None:
    """The manifest names configuration and layers; the configuration names the layers' uncompressed digests."""
    image = Image.build([Entry("a", b"1")], [Entry("b", b"2")], compress=compress)
    manifest = json.loads(image.manifest.content)
    blobs = {blob.digest: blob.content for blob in image.blobs}
    for descriptor in (manifest["config"], *manifest["layers"]):
        assert len(blobs[descriptor["digest"]]) == descriptor["size"]
    layers = [blobs[descriptor["digest"]] for descriptor in manifest["layers"]]
    tars = [gzip.decompress(layer) if compress else layer for layer in layers]
    configuration = json.loads(blobs[manifest["config"]["digest"]])
    assert configuration["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars]


def test_the_same_entries_give_the_same_image() -> None:
    """Nothing in an image depends on when it was made."""
    entries = [Entry("a", b"1", 0o644), Entry("l", b"a", kind="link")]
    assert Image.build(entries).manifest.digest == Image.build(entries).manifest.digest


def test_entries_keep_kind_and_mode() -> None:
    """Files, directories, links and pipes arrive as such; only files have a digest."""
    entries = [
        Entry("f", b"1", 0o640),
        Entry("d", kind="directory"),
        Entry("l", b"f", kind="link"),
        Entry("p", kind="pipe"),
    ]
    image = Image.build(entries, compress=False)
    with tarfile.open(fileobj=io.BytesIO(image.blobs[1].content)) as archive:
        members = {member.name: member for member in archive}
    assert (members["f"].mode, members["f"].size) == (0o640, 1)
    assert members["d"].isdir()
    assert members["l"].linkname == "f"
    assert members["p"].isfifo()
    assert image.files == {"/f": hashlib.sha256(b"1").hexdigest()}


def test_a_layout_has_the_image_that_was_written(tmp_path: Path) -> None:
    """Written and read again an image is the same: manifest, blobs, digests of files; what was in the folder before is gone."""
    (tmp_path / "image").mkdir()
    (tmp_path / "image/old").touch()
    image = Image.build(
        [Entry("a", b"1"), Entry("l", b"a", kind="link")], config={"User": "1"}, created="2026-01-01T00:00:00Z"
    )
    image.write_layout(tmp_path / "image", "v1")
    assert Image.read_layout(tmp_path / "image") == image
    assert sorted(path.name for path in (tmp_path / "image").iterdir()) == ["blobs", "index.json", "oci-layout"]
    configuration = json.loads(image.blobs[0].content)
    assert (configuration["config"], configuration["created"]) == ({"User": "1"}, "2026-01-01T00:00:00Z")
