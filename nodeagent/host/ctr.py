"""`ctr`, containerd's own client, as a subprocess: every machine image that Gardener supports ships it (contract 6.16).

Chosen over the gRPC API because that would bring grpcio and generated modules into every agent's memory and start-up, for
a handful of calls per OperatingSystemConfig; one call of `ctr` takes 10 to 20 ms.
"""

import contextlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Self

from agents.core import process
from agents.core.process import ProcessError, ProcessTimeout

HOSTS_DIRECTORY = "/etc/containerd/certs.d"
_FAILED = "container runtime client failed"
_SHORT = timedelta(seconds=30)
_CONNECT = "5s"  # instead of ten; it is local
_MOUNT_DEADLINE = timedelta(minutes=3)  # it unpacks what a killed pull had not unpacked
_MAJOR = re.compile(r"(?:^|\s)v?(\d+)\.\d+")
_MOST_TEXT = 512
_QUERY = re.compile(r"\?[^\s\"']+")


class CtrError(ProcessError):
    """containerd's client failed; fields: `command` and `problem`."""


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


@dataclass(frozen=True, slots=True)
class Lease:
    """What keeps containerd from collecting content and snapshots.

    Attributes:
        id: of a mount, the directory; of a pull, random.
        labels: their names.
    """

    id: str
    labels: frozenset[str]


class Ctr:
    """Calls `ctr`; each call is bounded in time and output and raises CtrError when it fails."""

    def __init__(self, settings: CtrSettings | None = None) -> None:
        self._settings = settings or CtrSettings()
        self._major_versions: dict[object, int] = {}

    async def major_version(self) -> int:
        """Return the client's major version; 1 if it does not say. A program is asked once, until there is another one."""
        program = _identity_of_program()
        if program not in self._major_versions:
            found = _MAJOR.search(await _run("--version", command="ctr --version"))
            self._major_versions = {program: int(found.group(1)) if found else 1}
        return self._major_versions[program]

    async def pull(self, image: str, *, label: str | None, deadline: timedelta) -> None:
        """Pull an image for this machine's platform and unpack it; its record gets a label."""
        options = ["--hosts-dir", HOSTS_DIRECTORY]
        if await self.major_version() > 1:
            options.append("--skip-metadata")
        if label is not None:
            options += ["--label", f"{label}=true"]
        await self._call("images", "pull", *options, "--", image, deadline=deadline)

    async def images(self, *filters: str) -> list[str]:
        """Return the references of the images that match one of the filters."""
        return (await self._call("images", "list", "--quiet", *filters)).split()

    async def remove_images(self, *images: str) -> None:
        """Remove image records, and what only they kept; missing ones are fine."""
        await self._call("images", "delete", "--sync", "--", *images)

    async def mount(self, image: str, target: Path) -> None:
        """Mount a read-only view; snapshot and lease are named after the directory."""
        await self._call("images", "mount", "--", image, str(target), deadline=_MOUNT_DEADLINE)

    async def unmount(self, target: Path) -> None:
        """Undo `mount`, whatever is left of it.

        The snapshot first: `ctr` deletes its lease before it, and then containerd's garbage collector may be quicker than `ctr`. It
        forgets to tell the layer below, which from then on has a child that nobody can see and can never be removed
        (https://github.com/containerd/containerd/issues/11908).
        """
        with contextlib.suppress(CtrError):  # not there; if it is something else, the next call has it too
            await self.remove_snapshot(str(target))
        await self._call("images", "unmount", "--rm", "--", str(target))

    async def snapshots(self) -> dict[str, str]:
        """Return the keys of all snapshots, each with its parent's; that of a lowest layer is empty."""
        lines = [line.split() for line in (await self._call("snapshots", "list")).splitlines()[1:] if line.strip()]
        return {key: rest[0] if len(rest) > 1 else "" for key, *rest in lines}

    async def remove_snapshot(self, key: str) -> None:
        """Remove a snapshot; refused while another one, or a container, stands on it."""
        await self._call("snapshots", "remove", "--", key)

    async def leases(self) -> list[Lease]:
        """Return all leases."""
        found = []
        for line in (await self._call("leases", "list")).splitlines()[1:]:
            id_, _created, labels = [*line.split(maxsplit=2), "", "", ""][:3]
            names = (label.partition("=")[0] for label in labels.strip().split(","))
            found.append(Lease(id_, frozenset(names)))
        return found

    async def remove_lease(self, id_: str) -> None:
        """Remove a lease, and what only it kept.

        At once: containerd does not sync what it unpacks, so after a power cut a snapshot that an interrupted pull left may have
        empty files, and the next pull would use it as it is.
        """
        await self._call("leases", "delete", "--sync", "--", id_)

    async def _call(self, *arguments: str, deadline: timedelta = _SHORT) -> str:
        to = (
            "--address",
            self._settings.address,
            "--namespace",
            self._settings.namespace,
            "--connect-timeout",
            _CONNECT,
        )
        return await _run(*to, *arguments, command=" ".join(("ctr", *arguments[:2])), deadline=deadline)


async def _run(*arguments: str, command: str, deadline: timedelta = _SHORT) -> str:
    try:
        completed = await process.run(["ctr", *arguments], deadline=deadline, environment=_environment(), check=False)
    except ProcessTimeout as error:
        raise CtrError(_FAILED, command=command, problem=f"no end after {deadline.total_seconds():g} s") from error
    except ProcessError as error:
        raise CtrError(_FAILED, command=command, problem=error.fields["problem"]) from error
    if completed.exit_code != 0:
        raise CtrError(
            _FAILED, command=command, problem=problem(completed.text()) or f"exit code {completed.exit_code}"
        )
    return completed.stdout.decode(errors="replace")


def _identity_of_program() -> object:
    """Return what is another thing when another `ctr` is found; None if none is."""
    found = shutil.which("ctr", path=_environment().get("PATH"))
    if found is None:
        return None
    try:
        status = Path(found).stat()
    except OSError:
        return None
    return found, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def problem(said: str) -> str:
    """Return why the client failed, out of what it printed: its last line, without what a signed URL carries, and not too long."""
    lines = [line.removeprefix("ctr: ") for line in said.splitlines() if line.startswith("ctr: ")]
    return _QUERY.sub("?...", lines[-1] if lines else said)[-_MOST_TEXT:]


def _environment() -> dict[str, str]:
    """Ours, so that proxies apply; pulling and mounting must agree on the snapshotter, and only one of them reads it."""
    environment = process.inherited_environment()
    environment.pop("CONTAINERD_SNAPSHOTTER", None)
    return environment
