"""How gardenlet reaches its seed: as the Pod that it is, with the files that a kubelet mounts."""

import os
import ssl
from pathlib import Path

import pytest

from agents.core import files
from agents.core.errors import FatalError
from agents.core.yamlio import dump_json
from agents.kube.kubeconfig import TokenFile
from agents.kube.tls import tls_context
from gardenlet.seed_access import seed_access
from tests.lab.pki import Authority
from tests.support.clock import FakeClock

ENVIRONMENT = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


class Volume:
    """A folder that a kubelet keeps: open to all, with links into a hidden folder that is exchanged as a whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = 0
        folder.mkdir()
        folder.chmod(0o1777)

    def publish(self, **content: bytes) -> None:
        """Have these files, by name with an underscore for the dot, and no others' content."""
        self._number += 1
        inside = self.folder / f"..{self._number}"
        inside.mkdir()
        for key, data in content.items():
            name = key.replace("_", ".")
            (inside / name).write_bytes(data)
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        (self.folder / "..next").symlink_to(inside.name)
        (self.folder / "..next").replace(self.folder / "..data")


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    """An empty volume."""
    return Volume(tmp_path / "volume")


async def test_a_pod_reads_its_service_account_through_links(volume: Volume, clock: FakeClock) -> None:
    """Contract core 1.1: token and CA of a ServiceAccount are links in a folder for all; a new token is seen, the CA is trusted."""
    authority = Authority.create("seed")
    volume.publish(ca_crt=authority.certificate_pem, token=b"first\n")
    access = await seed_access("", ENVIRONMENT, folder=volume.folder)
    assert access.url == "https://10.0.0.1:443"
    assert len(tls_context(access).get_ca_certs()) == 1
    path = access.credentials.token_file
    assert path is not None
    token = TokenFile(path, clock=clock, mounted=access.mounted)
    assert await token.get() == "first"
    volume.publish(ca_crt=authority.certificate_pem, token=b"second\n")
    token.expire()
    assert await token.get() == "second"


async def test_a_mounted_kubeconfig_is_read_through_links(volume: Volume) -> None:
    """Contract core 1.1: a kubeconfig of the values is a Secret's file, and so a link; what it names beside it is one, too."""
    cluster = {"server": "https://seed", "certificate-authority": "ca.crt"}
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "c", "user": {"tokenFile": "token"}}],
    }
    text = dump_json(document)
    volume.publish(kubeconfig=text, ca_crt=Authority.create("seed").certificate_pem, token=b"one")
    access = await seed_access(str(volume.folder / "kubeconfig"), {})
    assert isinstance(tls_context(access), ssl.SSLContext)
    assert access.mounted


@pytest.mark.parametrize("environment", [{}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}])
async def test_without_a_pod_and_a_kubeconfig_there_is_no_seed(environment: dict[str, str]) -> None:
    """Neither the one nor the other: a clear error that names what can be set."""
    with pytest.raises(FatalError, match=r"seedClientConnection\.kubeconfig or KUBECONFIG"):
        await seed_access("", environment)


def test_only_files_are_read_from_a_volume(volume: Volume) -> None:
    """What is missing is told as missing; a folder and a pipe are refused, and a pipe does not block."""
    assert files.read_mounted(volume.folder / "missing") is None
    (volume.folder / "folder").mkdir()
    os.mkfifo(volume.folder / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(files.FileError):
            files.read_mounted(volume.folder / name)
