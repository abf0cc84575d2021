"""A key whose certificate was requested and not used yet, kept so that a process that was killed goes on with its request.

It is written before the request is created and removed after the certificate is in use, so whatever line is the last one, the next
start either has the key of the request that is there, or never made one. Nothing else can be done with it: it opens nothing.
"""

import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from agents.core import files
from agents.core.logging import get_logger
from agents.core.threads import run_to_end

log = get_logger(__name__)

MODE = 0o600
DIRECTORY_MODE = 0o700


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request and its key.

    Attributes:
        name: of the CertificateSigningRequest.
        key: PEM.
        request: PEM.
        asked_by: as whom it was, or will be, created; somebody else may not read it.
        uid: of the CertificateSigningRequest, once that is known.
    """

    name: str
    key: bytes = field(repr=False)
    request: bytes = field(repr=False)
    asked_by: str = ""
    uid: str | None = None


class PendingStore(Protocol):
    """Keeps at most one."""

    async def load(self) -> PendingRequest | None:
        """Return what is kept, None if nothing usable is."""
        ...

    async def save(self, pending: PendingRequest) -> None:
        """Keep this from now on."""
        ...

    async def clear(self) -> None:
        """Keep nothing."""
        ...


class _Document(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: str
    key: str
    request: str
    asked_by: str
    uid: str | None = None


class FilePendingStore:
    """Keeps it in a file, 0600, in a folder that is created if need be.

    Args:
        path: for example `credentials/pending-request.json`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def load(self) -> PendingRequest | None:
        """Return what the file says; a damaged one is removed, as its key is of no use.

        Raises:
            FileError: it exists and cannot be read (retriable).
        """
        content = await run_to_end(files.read_optional, self._path)
        if content is None:
            return None
        try:
            found = _Document.model_validate_json(content)
            key, request = (base64.b64decode(text, validate=True) for text in (found.key, found.request))
        except (ValidationError, ValueError):
            log.error("Pending certificate request is damaged and was removed", path=str(self._path))
            await self.clear()
            return None
        return PendingRequest(found.name, key, request, found.asked_by, found.uid)

    async def save(self, pending: PendingRequest) -> None:
        """Write the file.

        Raises:
            FileError: it cannot be written (retriable).
        """
        document = _Document(
            name=pending.name,
            key=base64.b64encode(pending.key).decode(),
            request=base64.b64encode(pending.request).decode(),
            asked_by=pending.asked_by,
            uid=pending.uid,
        )
        await run_to_end(self._write, document.model_dump_json().encode())

    async def clear(self) -> None:
        """Remove the file.

        Raises:
            FileError: it cannot be removed (retriable).
        """
        await run_to_end(files.remove, self._path)

    def _write(self, content: bytes) -> None:
        files.ensure_directory(self._path.parent, mode=DIRECTORY_MODE)
        files.write_atomic(self._path, content, mode=MODE)
