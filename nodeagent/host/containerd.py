"""The container runtime itself: does it answer, which version is it, what is its default configuration.

Its version is asked over gRPC on a fresh connection, so a containerd that is down, or was replaced, matters only to the call that
meets it (contract 9, W32). Not through `ctr`, as images are: with some 190 calls an hour that would take 2 to 6 of the 10 CPU
seconds that an idle hour may cost, and where no process can be started it would say nothing about containerd. Source:
gardener pkg/nodeagent/containerd/containerdclient.go.
"""

import asyncio
from datetime import timedelta
from pathlib import Path

from agents.core import process
from agents.core.errors import RetriableError
from nodeagent.host import grpc_call
from nodeagent.host.ctr import CtrSettings
from nodeagent.host.not_asked import NotAsked, is_ours

VERSION_DEADLINE = timedelta(seconds=10)
CONFIG_DEADLINE = timedelta(seconds=30)
_VERSION = "/containerd.services.version.v1.Version/Version"
_FIRST_FIELD = 0x0A  # number 1, with a length


class ContainerdUnavailable(RetriableError):
    """containerd does not answer, or not in time, or with an error."""


class ContainerdNotAsked(NotAsked):
    """containerd could not be asked: what is missing is ours or the machine's, and says nothing about containerd."""


class Containerd:
    """Asks containerd and its program; each call has a deadline of its own.

    Args:
        settings: which containerd; the default socket unless given.
        deadline: for its version.
    """

    def __init__(self, settings: CtrSettings | None = None, *, deadline: timedelta = VERSION_DEADLINE) -> None:
        self._settings = settings or CtrSettings()
        self._deadline = deadline

    async def version(self) -> str:
        """Return the version of the containerd that is running, for example `1.6.20~ds1`.

        Raises:
            ContainerdUnavailable: it does not answer in time (10 s).
            ContainerdNotAsked: this process has no means to ask.
        """
        seconds = self._deadline.total_seconds()
        path = Path(self._settings.address.removeprefix("unix://"))
        try:
            async with asyncio.timeout(seconds):
                return _version_in(await grpc_call.call(path, _VERSION))
        except TimeoutError as error:
            raise ContainerdUnavailable("containerd does not answer", deadlineSeconds=seconds) from error
        except grpc_call.CallFailed as error:
            raise ContainerdUnavailable("containerd does not answer", problem=str(error)) from error
        except OSError as error:
            problem = error.strerror or type(error).__name__
            if is_ours(error):
                raise ContainerdNotAsked("containerd cannot be asked", problem=problem) from error
            raise ContainerdUnavailable("containerd does not listen", socket=str(path), problem=problem) from error

    async def default_config(self) -> bytes:
        """Return containerd's default configuration, a TOML document.

        Raises:
            ProcessError: `containerd config default` failed or did not end within 30 s.
        """
        completed = await process.run(["containerd", "config", "default"], deadline=CONFIG_DEADLINE)
        return completed.stdout


def _version_in(message: bytes) -> str:
    """Read the first field of containerd's VersionResponse; fewer than 128 bytes, so its length is one byte."""
    if len(message) < 2 or message[0] != _FIRST_FIELD or len(message) < 2 + message[1]:
        raise grpc_call.CallFailed("answer has no version")
    return message[2 : 2 + message[1]].decode(errors="replace")
