"""What the agent is doing, as a file for operators' commands: they work while the API server or the agent is down.

`/run/gardener-node-agent/status.json` is replaced atomically and only when something changed. It holds names, causes and
times; never a file's content.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from agents.core import files
from agents.core.clock import Clock
from agents.core.errors import AgentError
from agents.core.logging import get_logger
from agents.core.threads import run_to_end
from agents.core.yamlio import dump_json
from agents.runtime.controller import Controller
from agents.runtime.reconcile import Request, Result
from agents.runtime.source import ChannelSource

log = get_logger(__name__)

STATUS_MODE = 0o600
WRITE = Request("", "status")
_LONGEST_CAUSE = 1024


@dataclass(frozen=True, slots=True)
class FailingItem:
    """Something of the OperatingSystemConfig that is not as it should be."""

    name: str
    """For example `unit kubelet.service` or `file /etc/motd`."""
    cause: str
    since: datetime
    attempt: int
    next_try: datetime | None


class StatusBoard:
    """Collects what is known and writes it down."""

    def __init__(self, *, path: Path, clock: Clock, version: str) -> None:
        self._path = path
        self._clock = clock
        self._version = version
        self._phase = "starting"
        self._checksum = ""
        self._items: dict[str, FailingItem] = {}
        self._heartbeat: datetime | None = None
        self._certificate_expires: datetime | None = None
        self._written = b""
        self._writing = asyncio.Lock()
        self.changes = ChannelSource()
        """What was noted and has not been written."""

    async def phase(self, phase: str, *, checksum: str | None = None) -> None:
        """Say what is being done: `starting`, `applying`, `waitingForNode`, `applied` or `failing`."""
        self._phase = phase
        self._checksum = self._checksum if checksum is None else checksum
        await self.write()

    def note_phase(self, phase: str, *, checksum: str) -> None:
        """Say what is being done without waiting for the disk."""
        self._phase, self._checksum = phase, checksum
        self.changes.send(WRITE)

    async def failing(self, causes: Mapping[str, AgentError | str], *, next_try: datetime | None) -> None:
        """Replace the list of failing items; `since` and `attempt` of those that failed before are kept up."""
        now, items = self._clock.now(), {}
        for name, cause in causes.items():
            before = self._items.get(name)
            items[name] = FailingItem(
                name=name,
                cause=str(cause)[:_LONGEST_CAUSE],
                since=before.since if before else now,
                attempt=before.attempt + 1 if before else 1,
                next_try=next_try,
            )
        self._items = items
        await self.write()

    def note_heartbeat(self) -> None:
        """Note that the Lease was renewed just now; returns at once, so that no slow disk can hold up a heartbeat."""
        self._heartbeat = self._clock.now()
        self.changes.send(WRITE)

    async def certificate(self, expires: datetime) -> None:
        """Note until when our client certificate is valid."""
        self._certificate_expires = expires
        await self.write()

    def document(self) -> Mapping[str, object]:
        """Return what is written."""
        return {
            "version": self._version,
            "phase": self._phase,
            "checksum": self._checksum,
            "items": [
                {
                    "name": item.name,
                    "cause": item.cause,
                    "since": item.since.isoformat(),
                    "attempt": item.attempt,
                    "nextTry": item.next_try.isoformat() if item.next_try else None,
                }
                for item in self._items.values()
            ],
            "heartbeat": self._heartbeat.isoformat() if self._heartbeat else None,
            "certificateExpires": self._certificate_expires.isoformat() if self._certificate_expires else None,
        }

    async def write(self) -> None:
        """Write the file if anything changed."""
        async with self._writing:
            content = dump_json(self.document())
            if content == self._written:
                return
            try:
                await run_to_end(files.write_atomic, self._path, content, mode=STATUS_MODE, sync=False)
                self._written = content
            except files.FileError as error:
                # Operators lose sight, the node loses nothing: never a reason to stop working.
                log.debug("Status not written", error=error)


class StatusReconciler:
    """Writes down what was only noted."""

    def __init__(self, board: StatusBoard) -> None:
        self._board = board

    async def reconcile(self, request: Request) -> Result:
        """Write the status file."""
        await self._board.write()
        return Result()


def new_controller(board: StatusBoard) -> Controller:
    """Build the controller that writes the board's notes."""
    return Controller(name="status", reconciler=StatusReconciler(board), sources=[board.changes])
