"""Where the kubeconfig with our client certificate is kept, so that a restart finds one that works.

On a node it is a file, 0600, replaced atomically after it was parsed back. The one before stays beside it as `.bak` until
`confirm` says that the new one has been used; `load` falls back to it when the file is empty, torn or otherwise not usable
(contract 4.4; 9, W2). Saving happens under a lock, because more than one controller may have a reason to (7.9).
"""

import asyncio
from pathlib import Path
from typing import Protocol, TypeGuard

from agents.core import files
from agents.core.aside import set_aside
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
        name: of cluster, user and context in it.
    """

    def __init__(self, path: Path, *, name: str = "node-agent") -> None:
        self._path = path
        self._backup = path.with_name(f"{path.name}.bak")
        self._name = name
        self._lock = asyncio.Lock()

    async def load(self) -> ClusterAccess | None:
        """Return what the file says, else what the backup says, else None.

        Raises:
            FileError: a file exists and cannot be read (retriable).
        """
        for path in (self._path, self._backup):
            content = await asyncio.to_thread(files.read_optional, path)
            if content is None:
                continue
            try:
                return self._parse(content)
            except (InvalidKubeconfig, InvalidCertificate) as error:
                log.error("Kubeconfig is not usable", path=str(path), error=error)
                await run_to_end(set_aside, path)
        return None

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
        """Remove the backup."""
        async with self._lock:
            if await asyncio.to_thread(files.remove, self._backup):
                log.debug("Kubeconfig confirmed, backup removed", path=str(self._backup))

    def _replace(self, content: bytes) -> bool:
        """Blocking. Killed at any line, one of both files is whole and usable."""
        current = files.read_optional(self._path)
        if self._usable(current) and current != content and not self._usable(files.read_optional(self._backup)):
            files.write_atomic(self._backup, current, mode=MODE)
        return files.write_atomic(self._path, content, mode=MODE)

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
