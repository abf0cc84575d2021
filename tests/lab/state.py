"""What a lab has started, by id, on disk before it can be lost: the means by which nothing is ever left behind.

Every lab has a folder below one root with a ledger, one JSON line per thing that outlives a Python process: processes
(pid and start time), mounts, network namespaces, cgroups, loop devices, files. A line is written *before* the thing
exists, or by the thing itself (a process writes its own line before it becomes the program that was asked for), so
there is no moment at which a SIGKILL of ours makes something unfindable. Undoing is idempotent and goes backwards.

Nothing is ever found by name: a pid counts only together with its start time.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.errors import LabError
from tests.lab.progress import to_stderr

_KILL_DEADLINE_SECONDS = 30.0
SYSCTL = "sysctl"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that cannot be mistaken for another one that was given the same pid later."""

    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """Return the identity of a running process, None if there is no such process."""
        fields = _stat_fields(pid)
        return cls(pid, int(fields[19])) if fields else None

    def alive(self) -> bool:
        """Whether it still runs. A zombie does not, unless threads of it are still on their way out with its sockets."""
        fields = _stat_fields(self.pid)
        if not fields or int(fields[19]) != self.start:
            return False
        return fields[0] not in "ZX" or int(fields[17]) > 1

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False if the process is gone. A recycled pid is never hit."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            if not self.alive():
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on (field 3 of proc(5)), empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def kill_and_wait(processes: Iterable[ProcessIdentity]) -> None:
    """SIGKILL these processes and wait until all are gone.

    Raises:
        LabError: one of them survives for half a minute.
    """
    remaining = [process for process in processes if process.send(signal.SIGKILL)]
    deadline = time.monotonic() + _KILL_DEADLINE_SECONDS
    while remaining := [process for process in remaining if process.alive()]:
        if time.monotonic() > deadline:
            raise LabError("processes survive SIGKILL: " + ", ".join(map(_describe, remaining)))
        time.sleep(0.01)


def _describe(process: ProcessIdentity) -> str:
    """Return what can be seen of a process that does not end: a PID 1 waits for all of its namespace to be reaped."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
        where = Path(f"/proc/{process.pid}/wchan").read_text(encoding="utf-8")
    except OSError:
        return str(process.pid)
    seen = [line.replace("\t", " ") for line in lines if line.startswith(("Name", "State", "TracerPid", "NSpid"))]
    return f"{process.pid} ({', '.join(seen)}, waits in {where})"


def state_root() -> Path:
    """Return the folder that holds all labs of this user: `/run/gardener-lab` for root."""
    if os.geteuid() == 0:
        return Path("/run/gardener-lab")
    return Path(tempfile.gettempdir()) / f"gardener-lab-{os.geteuid()}"


class Ledger:
    """The folder of one lab and the record of what it started."""

    def __init__(self, name: str, *, root: Path | None = None) -> None:
        if not name or not all(c.isalnum() or c == "-" for c in name) or len(name) > 24:
            raise LabError(f"lab name {name!r}: letters, digits and dashes, at most 24")
        self.name = name
        self.directory = (root or state_root()) / name
        self.path = self.directory / "ledger.jsonl"

    def create(self) -> None:
        """Make the folder, readable for the owner only: keys and tokens live in it."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def exists(self) -> bool:
        """Whether this lab has a folder, that is: whether there may be something to undo."""
        return self.directory.is_dir()

    def record(self, kind: str, **fields: object) -> None:
        """Append one entry and make it durable before the caller creates the thing."""
        line = json.dumps({"kind": kind, **fields}) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def entries(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the entries, oldest first. A line torn by a kill is left out."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            with contextlib.suppress(json.JSONDecodeError):
                entry = json.loads(line)
                if kind is None or entry["kind"] == kind:
                    found.append(entry)
        return found

    def processes(self, *, owner: str | None = None) -> list[ProcessIdentity]:
        """Return recorded processes that still run, oldest first."""
        found = [e for e in self.entries("process") if owner is None or e.get("owner") == owner]
        identities = [ProcessIdentity(e["pid"], e["start"]) for e in found]
        return [identity for identity in identities if identity.alive()]

    def undo(self, *, owner: str | None = None) -> None:
        """End and remove what was recorded, of one owner (a machine) or of the whole lab; safe to repeat.

        Raises:
            LabError: something cannot be removed; the ledger stays, so that it can be tried again.
        """
        kill_and_wait(self.processes(owner=owner))
        entries = [e for e in reversed(self.entries()) if owner is None or e.get("owner") == owner]
        for kind in ("mount", "loop", "veth", "netns", "cgroup", "file"):
            for entry in entries:
                if entry["kind"] == kind:
                    _UNDO[kind](entry)
        for entry in entries:
            if entry["kind"] == SYSCTL:
                self._put_back(entry)
        if owner is not None:
            self._drop(owner)

    def _put_back(self, entry: dict[str, Any]) -> None:
        """Give the kernel's setting its value from before the first lab, unless another lab still needs ours."""
        with locked("limits", root=self.directory.parent, timeout=60):
            # Under the lock: of two labs that end at the same time, the second one is to see that it is the last.
            self._keep(lambda kept: kept != entry)
            if any(
                other["path"] == entry["path"] for lab in labs(self.directory.parent) for other in lab.entries(SYSCTL)
            ):
                return
            with contextlib.suppress(PermissionError):
                Path(entry["path"]).write_text(f"{entry['before']}\n", encoding="ascii")

    def remove(self) -> None:
        """Undo everything and delete the folder."""
        self.undo()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _drop(self, owner: str) -> None:
        self._keep(lambda entry: entry.get("owner") != owner)

    def _keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        kept = [entry for entry in self.entries() if wanted(entry)]
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(e) + "\n" for e in kept), encoding="utf-8")
        temporary.rename(self.path)


def labs(root: Path) -> list[Ledger]:
    """Return the ledgers of all labs."""
    return [Ledger(path.parent.name, root=root) for path in sorted(root.glob("*/ledger.jsonl"))]


def mounted(path: Path) -> bool:
    """Whether something is mounted exactly there, in our mount namespace."""
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    return any(line.split()[4] == str(path) for line in text.splitlines())


def _undo_mount(entry: dict[str, Any]) -> None:
    path = Path(entry["path"])
    while mounted(path):
        _run("umount", "--lazy", str(path))


def _undo_loop(entry: dict[str, Any]) -> None:
    backing = entry["file"]
    for line in _output("losetup", "--noheadings", "--output", "NAME", "--associated", backing).splitlines():
        _run("losetup", "--detach", line.strip())
    Path(backing).unlink(missing_ok=True)


def _undo_veth(entry: dict[str, Any]) -> None:
    where = ["-n", entry["netns"]] if "netns" in entry else []
    subprocess.run(["ip", *where, "link", "delete", entry["name"]], check=False, capture_output=True)


def _undo_netns(entry: dict[str, Any]) -> None:
    if Path("/run/netns", entry["name"]).exists():
        _run("ip", "netns", "delete", entry["name"])


def _undo_cgroup(entry: dict[str, Any]) -> None:
    top = Path(entry["path"])
    if not top.is_dir():
        return
    deadline = time.monotonic() + _KILL_DEADLINE_SECONDS
    folders = [Path(folder) for folder, _, _ in os.walk(top, topdown=False)]
    for folder in folders:
        while True:
            try:
                folder.rmdir()
            except FileNotFoundError:
                break
            except OSError as error:  # EBUSY while the last process of a killed namespace is being reaped
                if time.monotonic() > deadline:
                    raise LabError(f"cgroup {folder} stays busy") from error
                time.sleep(0.02)
            else:
                break


def _undo_file(entry: dict[str, Any]) -> None:
    path = Path(entry["path"])
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


_UNDO = {
    "mount": _undo_mount,
    "loop": _undo_loop,
    "veth": _undo_veth,
    "netns": _undo_netns,
    "cgroup": _undo_cgroup,
    "file": _undo_file,
}


def _run(*argv: str) -> None:
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(f"{' '.join(argv)}: {done.stderr.strip()}")


def _output(*argv: str) -> str:
    return subprocess.run(argv, check=False, capture_output=True, text=True).stdout


@contextlib.contextmanager
def locked(name: str, *, root: Path | None = None, timeout: float = 0.0) -> Iterator[None]:
    """Hold the host-wide lock of one lab; the kernel releases it however we end.

    Raises:
        LabError: another process holds it for longer than the timeout.
    """
    folder = root or state_root()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    deadline = time.monotonic() + timeout
    with (folder / f".{name}.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise LabError(f"lab {name!r} is in use by another process") from None
                time.sleep(0.1)
        yield


def claim(ledger: Ledger) -> None:
    """Bind a lab to this process: when we are gone without taking it down, the next lab clears it."""
    identity = ProcessIdentity.of(os.getpid())
    if identity is None:
        raise LabError("cannot read /proc")
    (ledger.directory / "owner").write_text(f"{identity.pid} {identity.start}\n", encoding="utf-8")


def release(ledger: Ledger) -> None:
    """Let a lab outlive this process: from now on only `down` removes it."""
    (ledger.directory / "owner").unlink(missing_ok=True)


def remove_abandoned(*, root: Path | None = None) -> list[str]:
    """Remove the labs whose owner was killed; returns their names.

    One that cannot be removed now is left for the next time: labs do not meet, so it is in nobody's way.
    """
    removed = []
    with locked("sweep", root=root, timeout=120):
        for owner in sorted((root or state_root()).glob("*/owner")):
            try:
                pid, start = owner.read_text(encoding="utf-8").split()
                if ProcessIdentity(int(pid), int(start)).alive():
                    continue
                Ledger(owner.parent.name, root=root).remove()
            except (LabError, OSError, ValueError) as error:
                to_stderr(f"lab {owner.parent.name!r}, left by a killed run, cannot be removed yet: {error}")
            else:
                removed.append(owner.parent.name)
    return removed
