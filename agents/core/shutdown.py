"""The one way to stop or restart ourselves.

A restart is an orderly exit with code 0; systemd or the kubelet starts the program again. A request that is a failure (the
leader's lease is lost) stops in the same order, with code 1. Source: gardener cmd/gardener-node-agent/app/app.go (context
cancelled), contract 1.8; for gardenlet contract core 1.3 and 1.7.
"""

import asyncio

from agents.core.logging import get_logger

log = get_logger(__name__)


class Shutdown:
    """A latch: the first request wins and is never taken back."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._reason: str | None = None
        self._failed = False

    @property
    def requested(self) -> str | None:
        """The reason of the first request, None while there is none."""
        return self._reason

    @property
    def failed(self) -> bool:
        """Return whether a failure is the reason of the first request."""
        return self._failed

    def request(self, reason: str, *, failed: bool = False) -> None:
        """Ask the process to stop in order; repeated requests change nothing.

        Args:
            reason: for the log.
            failed: the process is to end with an error.
        """
        if self._reason is not None:
            return
        self._reason, self._failed = reason, failed
        (log.error if failed else log.info)("Shutdown requested", reason=reason)
        self._requested.set()

    async def wait(self) -> str:
        """Wait for the first request and return its reason."""
        await self._requested.wait()
        if self._reason is None:  # pragma: no cover - set together with the event
            return ""
        return self._reason
