"""Remembers, until the next boot, that the last start ended with an error before it was complete.

The heartbeat begins before the start is complete. Without this an agent that fails at each of its starts would renew its Lease each
time, and be taken for one that works.
"""

import asyncio
from pathlib import Path

from agents.core import files
from agents.core.errors import AgentError
from agents.core.logging import get_logger

log = get_logger(__name__)

_MODE = 0o600


class FailedStart:
    """A file that is there from a start that failed until one is complete.

    Args:
        path: of the file, where a boot removes it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def is_noted(self) -> bool:
        """Tell whether the start before this one failed; if that cannot be told, it did not."""
        return await asyncio.to_thread(self._path.is_file)

    async def note(self) -> None:
        """Note that this one has."""
        try:
            await asyncio.to_thread(files.write_atomic, self._path, b"", mode=_MODE, sync=False)
        except AgentError as error:
            log.debug("Failed start not noted", error=error)

    async def forget(self) -> None:
        """Note that this one is complete."""
        try:
            await asyncio.to_thread(files.remove, self._path)
        except AgentError as error:
            log.debug("Failed start not forgotten", error=error)
