"""The container runtime itself: does it answer, which version is it, what is its default configuration.

Asked through `ctr`, which every machine image that Gardener supports ships, and not over gRPC. Measured per call: `ctr`
8.5 ms of CPU, children included, and no memory of ours; grpclib on a kept connection 0.3 ms, but 5.5 MiB of memory and
75 ms at each start. At some 190 calls an hour `ctr` costs 1.6 of the 10 CPU seconds that an idle hour may take.

Nothing is kept between calls, so a containerd that is down, or was replaced, matters only to the call that meets it (contract
9, W32). Source: gardener pkg/nodeagent/containerd/containerdclient.go.
"""

import asyncio
import re
import socket
from datetime import timedelta

from agents.core import process
from agents.core.errors import RetriableError
from nodeagent.host.ctr import CtrSettings

VERSION_DEADLINE = timedelta(seconds=10)
CONFIG_DEADLINE = timedelta(seconds=30)
_CONNECT_DEADLINE_SECONDS = 5.0
_KILLED_BY_SIGNAL = 128
_SERVER_VERSION = re.compile(r"^Server:.*?^\s+Version:\s*(\S+)", re.MULTILINE | re.DOTALL)


class ContainerdUnavailable(RetriableError):
    """containerd does not answer, or not in time, or with an error."""


class ContainerdNotAsked(RetriableError):
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
            ContainerdNotAsked: `ctr` cannot be run.
        """
        try:
            async with asyncio.timeout(self._deadline.total_seconds()):
                await self._connect()
                return await self._version()
        except (TimeoutError, process.ProcessTimeout) as error:
            raise ContainerdUnavailable(
                "containerd does not answer", deadlineSeconds=self._deadline.total_seconds()
            ) from error

    async def default_config(self) -> bytes:
        """Return containerd's default configuration, a TOML document.

        Raises:
            ProcessError: `containerd config default` failed or did not end within 30 s.
        """
        completed = await process.run(["containerd", "config", "default"], deadline=CONFIG_DEADLINE)
        return completed.stdout

    async def _version(self) -> str:
        argv = ["ctr", "--address", self._settings.address, "version"]
        try:
            completed = await process.run(argv, deadline=self._deadline, check=False)
        except process.ProcessTimeout:
            raise
        except process.ProcessError as error:
            raise ContainerdNotAsked("ctr cannot be run", problem=error.fields.get("problem")) from error
        if completed.exit_code > _KILLED_BY_SIGNAL:
            raise ContainerdNotAsked("ctr was killed", signal=completed.exit_code - _KILLED_BY_SIGNAL)
        if completed.exit_code != 0:
            raise ContainerdUnavailable("containerd does not answer", problem=completed.text())
        found = _SERVER_VERSION.search(completed.stdout.decode(errors="replace"))
        if found is None:
            raise ContainerdNotAsked("ctr prints no version of the server", output=completed.text())
        return found[1]

    async def _connect(self) -> None:
        """See whether anybody listens: `ctr` goes on dialing for ten seconds, and then says only that it was too long."""
        path = self._settings.address.removeprefix("unix://")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # noqa: FBT003 - the library's signature
            try:
                async with asyncio.timeout(_CONNECT_DEADLINE_SECONDS):
                    await asyncio.get_running_loop().sock_connect(probe, path)
            except OSError as error:
                raise ContainerdUnavailable(
                    "containerd does not listen", socket=path, problem=error.strerror or "no answer in time"
                ) from error
