"""`ctr`, containerd's own client, as a subprocess: every machine image that Gardener supports ships it (contract 6.16).

Chosen over the gRPC API because that would bring grpcio and generated modules: about 20 MiB of memory and a third of a
second at each start, for a handful of calls per OperatingSystemConfig.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from agents.core import process

_SHORT = timedelta(seconds=30)
_MAJOR = re.compile(rb"(?:^|\s)v?(\d+)\.\d+")


@dataclass(frozen=True, slots=True)
class CtrSettings:
    """Which containerd, and which of its namespaces.

    Attributes:
        address: its socket.
        namespace: where pulled images are recorded; not the kubelet's, `k8s.io`.
    """

    address: str = "/run/containerd/containerd.sock"
    namespace: str = "default"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read `CONTAINERD_ADDRESS` and `CONTAINERD_NAMESPACE`; empty ones count as unset."""
        plain = cls()
        return cls(
            address=environment.get("CONTAINERD_ADDRESS") or plain.address,
            namespace=environment.get("CONTAINERD_NAMESPACE") or plain.namespace,
        )


class Ctr:
    """Calls `ctr`; each call is bounded in time and output."""

    def __init__(self, settings: CtrSettings | None = None) -> None:
        self._settings = settings or CtrSettings()

    async def call(self, *arguments: str, deadline: timedelta = _SHORT) -> str:
        """Run one command and return what it printed.

        Raises:
            ProcessError: it failed, could not be started or did not end in time.
        """
        to = ["--address", self._settings.address, "--namespace", self._settings.namespace]
        completed = await process.run(["ctr", *to, *arguments], deadline=deadline, environment=_environment())
        return completed.stdout.decode(errors="replace")

    async def major_version(self) -> int:
        """Return the client's major version; 1 if it does not say.

        Raises:
            ProcessError: there is no `ctr`.
        """
        completed = await process.run(["ctr", "--version"], deadline=_SHORT, environment=_environment())
        found = _MAJOR.search(completed.stdout)
        return int(found.group(1)) if found else 1


def _environment() -> dict[str, str]:
    """Ours, so that proxies apply; pulling and mounting must agree on the snapshotter, and only one of them reads it."""
    environment = process.inherited_environment()
    environment.pop("CONTAINERD_SNAPSHOTTER", None)
    return environment
