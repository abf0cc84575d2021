"""Where the kubeconfig with our client certificate is kept, so that a restart finds one that works.

On a node it is a file, 0600, replaced atomically after it was parsed back. The one before stays beside it as `.bak` until
`confirm` says that the new one has been used; `load` falls back to it when the file is empty, torn or otherwise not usable
(contract 4.4; 9, W2). Where there is none, the file is made good from what is kept of it elsewhere: without that a damaged block of
the disk would cost the node its identity, as the bootstrap token is long gone. A file that is missing stays so: somebody
removed it so that another certificate is requested. Saving happens under a lock, because more than one controller may have a
reason to (7.9).
"""

import asyncio
from pathlib import Path
from typing import Protocol, TypeGuard

from agents.core import files
from agents.core.aside import DAMAGED, keep_aside, set_aside
from agents.core.generations import Keeper, Origin
from agents.core.logging import get_logger
from agents.core.threads import run_to_end
from agents.kube import kubeconfig
from agents.kube.kubeconfig import ClusterAccess, InvalidKubeconfig
from agents.pki.certificate import InvalidCertificate, check_key_pair

log = get_logger(__name__)

MODE = 0o600


class KubeconfigStore(Protocol):
    """Keeps how to reach a cluster, and as whom."""

    async def load(self) -> ClusterAccess | None:
        """Return what is kept, None if nothing usable is."""
        ...

    async def save(self, access: ClusterAccess) -> None:
        """Keep this from now on."""
        ...

    async def confirm(self) -> None:
        """Say that what is kept has been used with success."""
        ...


class FileKubeconfigStore:
    """Keeps a kubeconfig in a file.

    Args:
        path: for example `credentials/kubeconfig`; its backup is beside it.
        generations: keeps what the file holds, and held before.
        name: of cluster, user and context in it.
    """

    def __init__(self, path: Path, *, generations: Keeper, name: str = "node-agent") -> None:
        self._path = path
        self._generations = generations
        self._news: list[str] = []
        self._backup = path.with_name(f"{path.name}.bak")
        self._name = name
        self._lock = asyncio.Lock()

    async def load(self) -> ClusterAccess | None:
        """Return what the file says; if it is damaged, what the backup or another generation of it says; else None.

        Raises:
            FileError: a file exists and cannot be read, or not be made good (retriable).
        """
        async with self._lock:
            return await run_to_end(self._load)

    def take_news(self) -> list[str]:
        """Return what was found out about the file since the last call, for operators; nothing secret."""
        news, self._news = self._news, []
        return news

    async def save(self, access: ClusterAccess) -> None:
        """Write the file; keep the last confirmed one as the backup.

        Raises:
            InvalidKubeconfig: what was to be written cannot be read back; nothing is changed (terminal).
            InvalidCertificate: certificate and key do not belong together; nothing is changed (terminal).
            FileError: a file cannot be written (retriable).
        """
        content = kubeconfig.render(access, name=self._name)
        self._parse(content)
        async with self._lock:
            changed = await run_to_end(self._replace, content)
        if changed:
            log.info("Kubeconfig written", path=str(self._path))

    async def confirm(self) -> None:
        """Remove the backup; keep what the file holds, also if somebody else wrote it."""
        async with self._lock:
            await run_to_end(self._confirm)

    def _confirm(self) -> None:
        if files.remove(self._backup):
            log.debug("Kubeconfig confirmed, backup removed", path=str(self._backup))
        content = files.read_optional(self._path)
        if self._usable(content) and self._generations.origin(self._path, content) is not Origin.OURS:
            self._generations.adopt(self._path, content)

    def _load(self) -> ClusterAccess | None:
        content = files.read_optional(self._path)
        if content is None:
            backup = files.read_optional(self._backup)
            return self._parse(backup) if self._usable(backup) else None
        try:
            return self._parse(content)
        except (InvalidKubeconfig, InvalidCertificate) as error:
            access = self._from_before()
            consequence = "another one is used" if access is not None else "a new certificate has to be requested"
            log.error("Kubeconfig is not usable", path=str(self._path), consequence=consequence, error=error)
            kept = f"{self._path.name}{DAMAGED}"
            self._news.append(f"{self._path} was damaged and is kept as {kept}; {consequence}")
            return access

    def _from_before(self) -> ClusterAccess | None:
        """Make the file good; killed at any line, the damaged one is still there and this is done again."""
        for content in (files.read_optional(self._backup), *self._generations.kept(self._path)):
            if self._usable(content):
                keep_aside(self._path, self._path.with_name(f"{self._path.name}{DAMAGED}"))
                self._generations.write(self._path, content, mode=MODE)
                return self._parse(content)
        set_aside(self._path)
        return None

    def _replace(self, content: bytes) -> bool:
        """Blocking. Killed at any line, one of both files is whole and usable."""
        current = files.read_optional(self._path)
        if self._usable(current) and current != content and not self._usable(files.read_optional(self._backup)):
            files.write_atomic(self._backup, current, mode=MODE)
        return self._generations.write(self._path, content, mode=MODE)

    def _parse(self, content: bytes) -> ClusterAccess:
        access = kubeconfig.parse(content, directory=self._path.parent)
        credentials = access.credentials
        if credentials.client_certificate:
            check_key_pair(credentials.client_certificate, credentials.client_key)
        elif not credentials.token and not credentials.username:
            raise InvalidKubeconfig("kubeconfig has no credentials")
        return access

    def _usable(self, content: bytes | None) -> TypeGuard[bytes]:
        if content is None:
            return False
        try:
            self._parse(content)
        except (InvalidKubeconfig, InvalidCertificate):
            return False
        return True
