"""The stored kubeconfig survives whatever happens while it is replaced."""

import asyncio
import stat
import time
from pathlib import Path

import pytest
import structlog

from agents.core import files
from agents.core.files import FileError
from agents.kube.kubeconfig import ClusterAccess, Credentials, InvalidKubeconfig
from agents.pki.certificate import InvalidCertificate
from agents.pki.store import FileKubeconfigStore
from tests.lab.pki import Authority


@pytest.fixture(scope="module")
def authority() -> Authority:
    """A certificate authority."""
    return Authority.create("test")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the kubeconfig is."""
    return tmp_path / "credentials" / "kubeconfig"


def access(authority: Authority, user: str) -> ClusterAccess:
    """Return an access with a new certificate."""
    certificate, key = authority.issue_client(user, [])
    credentials = Credentials(client_certificate=certificate, client_key=key)
    return ClusterAccess(server="https://api", ca_data=authority.certificate_pem, credentials=credentials)


async def test_save_and_load(authority: Authority, path: Path) -> None:
    """Contract 4.4: the kubeconfig must be written with mode 0600, and is what is loaded afterwards."""
    store = FileKubeconfigStore(path)
    assert await store.load() is None
    saved = access(authority, "one")
    await store.save(saved)
    assert await store.load() == saved
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_previous_is_kept_until_confirmed(authority: Authority, path: Path) -> None:
    """Contract 4.4: the previous file must be kept as `kubeconfig.bak` (0600) until the new one has been used."""
    store = FileKubeconfigStore(path)
    backup = path.with_name("kubeconfig.bak")
    await store.save(access(authority, "one"))
    assert not backup.exists()
    before = path.read_bytes()
    await store.save(access(authority, "two"))
    assert backup.read_bytes() == before
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    await store.confirm()
    await store.confirm()
    assert not backup.exists()


async def test_w45_two_at_once_save_one_after_the_other(
    authority: Authority, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 9 W45, 7.9: whoever saves while somebody else does waits; the file is the one or the other, never both."""
    write, writing, together = files.write_atomic, set[Path](), list[Path]()

    def slowly(target: Path, content: bytes, *, mode: int) -> bool:
        together.extend(writing)
        writing.add(target)
        time.sleep(0.05)
        try:
            return write(target, content, mode=mode)
        finally:
            writing.discard(target)

    monkeypatch.setattr(files, "write_atomic", slowly)
    store = FileKubeconfigStore(path)
    both = [access(authority, "one"), access(authority, "two")]
    async with asyncio.TaskGroup() as group:
        for item in both:
            group.create_task(store.save(item))
    assert together == []
    assert await store.load() in both


async def test_unconfirmed_does_not_replace_the_backup(authority: Authority, path: Path) -> None:
    """If the new one is replaced before it was ever used, the backup stays the last one that worked."""
    store = FileKubeconfigStore(path)
    first = access(authority, "one")
    for item in (first, access(authority, "two"), access(authority, "three")):
        await store.save(item)
    path.write_bytes(b"")
    with structlog.testing.capture_logs():
        assert await store.load() == first


@pytest.mark.parametrize("content", [b"", b"torn: [", b'{"current-context":"node-agent"}'])
async def test_w02_load_falls_back(authority: Authority, path: Path, content: bytes) -> None:
    """Contract 9 W2: an empty or torn kubeconfig must not be fatal: the backup is used, and the problem is logged."""
    store = FileKubeconfigStore(path)
    first = access(authority, "one")
    await store.save(first)
    await store.save(access(authority, "two"))
    path.write_bytes(content)
    with structlog.testing.capture_logs() as logs:
        assert await store.load() == first
    assert [line["event"] for line in logs] == ["Kubeconfig is not usable"]


async def test_nothing_usable_is_none(authority: Authority, path: Path) -> None:
    """Contract 4.2: without any usable file there is none, so that the bootstrap token can be used."""
    store = FileKubeconfigStore(path)
    await store.save(access(authority, "one"))
    path.write_bytes(b"")
    with structlog.testing.capture_logs():
        assert await store.load() is None


async def test_torn_file_is_no_backup(authority: Authority, path: Path) -> None:
    """A file that is not usable is replaced without becoming the backup; a backup that is not usable is replaced."""
    store = FileKubeconfigStore(path)
    path.parent.mkdir()
    path.write_bytes(b"torn")
    backup = path.with_name("kubeconfig.bak")
    await store.save(access(authority, "one"))
    assert not backup.exists()
    backup.write_bytes(b"torn")
    good = path.read_bytes()
    await store.save(access(authority, "two"))
    assert backup.read_bytes() == good


async def test_same_content_is_not_written_again(authority: Authority, path: Path) -> None:
    """Saving what is there already changes no file and logs nothing."""
    store = FileKubeconfigStore(path)
    saved = access(authority, "one")
    await store.save(saved)
    before = path.stat()
    with structlog.testing.capture_logs() as logs:
        await store.save(saved)
    assert (path.stat().st_ino, logs) == (before.st_ino, [])
    assert not path.with_name("kubeconfig.bak").exists()


async def test_what_cannot_be_read_back_is_not_written(authority: Authority, path: Path) -> None:
    """Contract 4.4: the new file must be parsed back before it replaces the old one."""
    store = FileKubeconfigStore(path)
    first, second = access(authority, "one"), access(authority, "two")
    await store.save(first)
    mixed = Credentials(
        client_certificate=first.credentials.client_certificate, client_key=second.credentials.client_key
    )
    with pytest.raises(InvalidCertificate):
        await store.save(ClusterAccess(server="https://api", credentials=mixed))
    with pytest.raises(InvalidKubeconfig):
        await store.save(ClusterAccess(server="https://api"))
    with pytest.raises(InvalidKubeconfig):
        await store.save(ClusterAccess(server="https://api", credentials=Credentials(token_file=Path("/t"))))
    assert await store.load() == first


async def test_names_can_be_chosen(path: Path) -> None:
    """Cluster, user and context have the given name."""
    await FileKubeconfigStore(path, name="garden").save(ClusterAccess(server="a", credentials=Credentials(token="t")))
    assert b'"current-context":"garden"' in path.read_bytes()


async def test_folder_instead_of_a_file(path: Path) -> None:
    """What cannot be read at all is told, and not taken for missing."""
    path.mkdir(parents=True)
    with pytest.raises(FileError):
        await FileKubeconfigStore(path).load()
