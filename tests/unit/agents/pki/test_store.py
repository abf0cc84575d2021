"""The stored kubeconfig survives whatever happens while it is replaced."""

import asyncio
import stat
import time
from pathlib import Path

import pytest
import structlog

from agents.core import files
from agents.core.files import FileError, write_atomic
from agents.core.generations import Generations
from agents.kube import kubeconfig
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


def new_store(path: Path, *, name: str = "node-agent") -> FileKubeconfigStore:
    """Return what a new process has."""
    return FileKubeconfigStore(path, generations=Generations(path.parent.parent / "generations"), name=name)


def access(authority: Authority, user: str) -> ClusterAccess:
    """Return an access with a new certificate."""
    certificate, key = authority.issue_client(user, [])
    credentials = Credentials(client_certificate=certificate, client_key=key)
    return ClusterAccess(server="https://api", ca_data=authority.certificate_pem, credentials=credentials)


async def test_save_and_load(authority: Authority, path: Path) -> None:
    """Contract 4.4: the kubeconfig must be written with mode 0600, and is what is loaded afterwards."""
    store = new_store(path)
    assert await store.load() is None
    saved = access(authority, "one")
    await store.save(saved)
    assert await store.load() == saved
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_previous_is_kept_until_confirmed(authority: Authority, path: Path) -> None:
    """Contract 4.4: the previous file must be kept as `kubeconfig.bak` (0600) until the new one has been used."""
    store = new_store(path)
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
    store = new_store(path)
    both = [access(authority, "one"), access(authority, "two")]
    async with asyncio.TaskGroup() as group:
        for item in both:
            group.create_task(store.save(item))
    assert together == []
    assert await store.load() in both


async def test_unconfirmed_does_not_replace_the_backup(authority: Authority, path: Path) -> None:
    """If the new one is replaced before it was ever used, the backup stays the last one that worked."""
    store = new_store(path)
    first = access(authority, "one")
    for item in (first, access(authority, "two"), access(authority, "three")):
        await store.save(item)
    path.write_bytes(b"")
    with structlog.testing.capture_logs():
        assert await store.load() == first
    (note,) = store.take_news()
    assert f"{path} was damaged" in note


@pytest.mark.parametrize("content", [b"", b"torn: [", b'{"current-context":"node-agent"}'])
async def test_w02_load_falls_back(authority: Authority, path: Path, content: bytes) -> None:
    """Contract 9 W2: an empty or torn kubeconfig must not be fatal: the backup is used, and the problem is logged."""
    store = new_store(path)
    first = access(authority, "one")
    await store.save(first)
    await store.save(access(authority, "two"))
    path.write_bytes(content)
    with structlog.testing.capture_logs() as logs:
        assert await store.load() == first
    assert [line["event"] for line in logs] == ["Kubeconfig is not usable"]


@pytest.mark.parametrize("content", [b"", b"torn: [", b"\x00" * 1000])
async def test_damaged_file_is_made_good(authority: Authority, path: Path, content: bytes) -> None:
    """The identity survives a damaged file also long after it was confirmed; the damaged one is kept, and operators are told once."""
    store = new_store(path)
    for user in ("one", "two"):
        newest = access(authority, user)
        await store.save(newest)
        await store.confirm()
    good = path.read_bytes()
    path.write_bytes(content)
    store = new_store(path)
    with structlog.testing.capture_logs() as logs:
        assert await store.load() == await store.load() == newest
    assert [line["event"] for line in logs] == ["Kubeconfig is not usable"]
    assert path.read_bytes() == good
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    damaged = path.with_name("kubeconfig.damaged")
    assert (damaged.read_bytes(), stat.S_IMODE(damaged.stat().st_mode)) == (content, 0o600)
    (note,) = store.take_news()
    assert f"{path} was damaged and is kept as kubeconfig.damaged" in note
    assert store.take_news() == []


async def test_file_of_somebody_else_is_kept_once_it_works(authority: Authority, path: Path) -> None:
    """Gardener's agent wrote it, and ours went on with it: confirmed, it is made good after a damage as our own is."""
    other = access(authority, "one")
    write_atomic(path, kubeconfig.render(other), mode=0o600)
    store = new_store(path)
    for _ in range(2):
        await store.confirm()
    path.write_bytes(b"torn")
    with structlog.testing.capture_logs():
        assert await store.load() == other


async def test_damaged_generations_tell_nothing(authority: Authority, path: Path) -> None:
    """With the newest one damaged as well the one before is used; with both there is none."""
    store = new_store(path)
    first = access(authority, "one")
    for item in (first, access(authority, "two")):
        await store.save(item)
        await store.confirm()
    kept = sorted((path.parent.parent / "generations").glob("kubeconfig.*"), key=lambda copy: copy.stat().st_mtime_ns)
    copies = [copy for copy in kept if copy.suffix != ".json"]
    newest = next(copy for copy in copies if copy.read_bytes() == path.read_bytes())
    for damaged in (newest, path):
        damaged.write_bytes(b"torn")
    with structlog.testing.capture_logs():
        assert await store.load() == first
        for damaged in (*copies, path):
            damaged.write_bytes(b"torn")
        assert await new_store(path).load() is None
    assert not path.exists()


async def test_removed_file_stays_removed(authority: Authority, path: Path) -> None:
    """Who removes it wants another certificate requested: what is kept does not come back."""
    store = new_store(path)
    await store.save(access(authority, "one"))
    await store.confirm()
    path.unlink()
    assert await store.load() is None
    assert not path.exists()


async def test_w02_nothing_usable_is_none(authority: Authority, path: Path) -> None:
    """Contract 4.2: without any usable file there is none, so that the bootstrap token can be used; operators are told."""
    store = new_store(path)
    path.parent.mkdir()
    path.write_bytes(b"")
    with structlog.testing.capture_logs():
        assert await store.load() is None
    (note,) = store.take_news()
    assert note.endswith("a new certificate has to be requested")
    assert path.with_name("kubeconfig.damaged").exists()


async def test_torn_file_is_no_backup(authority: Authority, path: Path) -> None:
    """A file that is not usable is replaced without becoming the backup; a backup that is not usable is replaced."""
    store = new_store(path)
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
    store = new_store(path)
    saved = access(authority, "one")
    await store.save(saved)
    before = path.stat()
    with structlog.testing.capture_logs() as logs:
        await store.save(saved)
    assert (path.stat().st_ino, logs) == (before.st_ino, [])
    assert not path.with_name("kubeconfig.bak").exists()


async def test_what_cannot_be_read_back_is_not_written(authority: Authority, path: Path) -> None:
    """Contract 4.4: the new file must be parsed back before it replaces the old one."""
    store = new_store(path)
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
    await new_store(path, name="garden").save(ClusterAccess(server="a", credentials=Credentials(token="t")))
    assert b'"current-context":"garden"' in path.read_bytes()


async def test_folder_instead_of_a_file(path: Path) -> None:
    """What cannot be read at all is told, and not taken for missing."""
    path.mkdir(parents=True)
    with pytest.raises(FileError):
        await new_store(path).load()
