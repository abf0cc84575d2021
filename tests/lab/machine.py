"""A worker machine: systemd as PID 1 in namespaces of its own, on a disk that survives reboots."""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from tests.lab import disks
from tests.lab.api import wait_for
from tests.lab.errors import LabError
from tests.lab.faults import NetworkFaults
from tests.lab.image import ImageSource, write_image
from tests.lab.mounts import WITHHELD_CAPABILITIES, HostFacts, boot_plan, cgroup_folders, enter_cgroups, script
from tests.lab.network import LabNetwork, MachineAddress
from tests.lab.pause import pause_archive
from tests.lab.processes import LabProcess, find, spawn
from tests.lab.state import Ledger, ProcessIdentity, kill_and_wait

Storage = Literal["tmpfs", "ext4"]

_PATH = "/opt/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BOOT_DEADLINE_SECONDS = 60.0
_SHUTDOWN_DEADLINE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class MachinePlace:
    """Where a machine belongs: its lab's record and network, and its addresses."""

    ledger: Ledger
    network: LabNetwork
    where: MachineAddress


class Machine(NetworkFaults):
    """One machine; make it with `create`, or attach to a recorded one with the constructor.

    Attributes:
        name: its host name.
        address: its IP address on the lab's bridge.
    """

    def __init__(self, place: MachinePlace, name: str) -> None:
        self._ledger = place.ledger
        self._network = place.network
        self._where = place.where
        self._small_disks = 0
        self.name = name
        self.address = place.where.address

    @classmethod
    def create(cls, place: MachinePlace, name: str, source: ImageSource, *, storage: Storage = "tmpfs") -> "Machine":
        """Make the disk, boot, and import the pause image; returns a machine whose systemd has finished starting."""
        machine = cls(place, name)
        try:
            disks.create_base(machine._ledger, machine.base, name, storage=storage)
            write_image(source, machine.base, name, place.where)
            machine.boot()
            machine._import_images()
        except BaseException:
            machine.stop()
            raise
        return machine

    @property
    def ledger(self) -> Ledger:
        """Its lab's record of what was started."""
        return self._ledger

    @property
    def base(self) -> Path:
        """Folder of its disk, on the host."""
        return self._ledger.directory / "machines" / self.name

    @property
    def netns(self) -> str:
        """Name of its network namespace."""
        return f"{self._network.netns}-{self.name}"

    @property
    def pid1(self) -> int:
        """Process id of its systemd, as the host sees it.

        Raises:
            LabError: it does not run.
        """
        return self._init().pid

    def running(self) -> bool:
        """Whether its systemd runs."""
        return find(self._ledger, "init", owner=self.name) is not None

    def boot(self, *, units_may_fail: bool = False) -> None:
        """Start it from its disk and wait until systemd has finished starting.

        Args:
            units_may_fail: whether the machine may come up with failed units.

        Raises:
            LabError: it does not start, or units failed that may not.
        """
        facts = HostFacts.read()
        label = f"gardener-lab-{self._ledger.name}-{self.name}"
        for folder in cgroup_folders(facts.hierarchies, label):
            self._ledger.record("cgroup", path=str(folder), owner=self.name)
        netns = self._network.plug_in(self.name, self._where)
        withheld = ",".join(f"-{name}" for name in WITHHELD_CAPABILITIES)
        inside = script(boot_plan(facts, self.base, self.name)) + (
            f"exec setpriv --bounding-set {withheld} /usr/lib/systemd/systemd --system --log-target=journal "
            "--show-status=0 --unit=multi-user.target\n"
        )
        unshare = [
            "unshare",
            "--mount",
            "--pid",
            "--ipc",
            "--uts",
            "--cgroup",
            "--fork",
            "--kill-child",
            "/bin/sh",
            "-c",
            inside,
        ]
        outside = script(enter_cgroups(facts.hierarchies, label)) + f"exec {shlex.join(unshare)}\n"
        environment = {"PATH": _PATH, "container": "gardener-lab"}
        launcher = spawn(
            self._ledger,
            "launcher",
            ["/bin/sh", "-c", outside],
            log=self.log_path,
            owner=self.name,
            netns=netns,
            env=environment,
        )
        self._record_init(launcher)
        self._wait_started({"running", "degraded"} if units_may_fail else {"running"})

    @property
    def log_path(self) -> Path:
        """File with what was printed before systemd's journal ran."""
        return self._ledger.directory / f"{self.name}.log"

    def reboot(self, *, graceful: bool = True) -> None:
        """Restart it on its old disk.

        Args:
            graceful: shut down first; otherwise the power is cut.
        """
        if graceful:
            self.run(["systemctl", "poweroff", "--no-block"])
            identity = self._init().identity
            with contextlib.suppress(LabError):
                wait_for(
                    lambda: not identity.alive(), timeout=_SHUTDOWN_DEADLINE_SECONDS, what="the machine to shut down"
                )
        self.kill_power()
        self.boot()

    def kill_power(self) -> None:
        """End everything on it at once; the disk stays, `boot` starts it again."""
        kill_and_wait(self._ledger.processes(owner=self.name))

    def stop(self) -> None:
        """Remove it with its disk, namespaces and cgroups."""
        self._ledger.undo(owner=self.name)

    def command(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> list[str]:
        """Return the command line that runs a program in the machine, for use on the host."""
        variables = {"PATH": _PATH, "LANG": "C.UTF-8", "HOME": "/root", **(env or {})}
        inside = ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), *argv]
        return [
            "nsenter",
            f"--target={self.pid1}",
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            "--cgroup",
            "--root",
            "--wd",
            *inside,
        ]

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60,
        check: bool = True,
        input: str | None = None,  # noqa: A002 - as in subprocess.run
        env: Mapping[str, str] | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program in the machine to its end.

        Raises:
            LabError: it failed and `check` is set, or it took longer than `timeout` seconds.
        """
        try:
            done = subprocess.run(
                self.command(argv, env=env),
                check=False,
                capture_output=True,
                text=True,
                timeout=timeout,
                input=input,
                stdin=None if input is not None else subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            raise LabError(f"{self.name}: {shlex.join(argv)} did not end within {timeout:g} s") from error
        if check and done.returncode != 0:
            text = (done.stderr or done.stdout).strip()[-1000:]
            raise LabError(f"{self.name}: {shlex.join(argv)} exited with {done.returncode}: {text}")
        return done

    def popen(
        self,
        argv: Sequence[str],
        *,
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int | IO[bytes] = subprocess.STDOUT,
    ) -> "subprocess.Popen[bytes]":
        """Start a program in the machine; the caller ends it."""
        return subprocess.Popen(self.command(argv), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)

    def path(self, inside: str) -> Path:
        """Return a path of the machine as the host sees it, while it runs.

        Symbolic links on the way are followed as the machine would; the last component is not.
        """
        return inside_root(Path(f"/proc/{self.pid1}/root"), inside)

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file, making the folders above it (0755)."""
        target = self.path(path)
        missing = [folder for folder in target.parents if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir()
            folder.chmod(0o755)
        temporary = target.with_name(f".{target.name}.lab")
        temporary.write_bytes(data)
        temporary.chmod(mode)
        temporary.rename(target)

    def read(self, path: str) -> bytes:
        """Return a file's content."""
        return self.path(path).read_bytes()

    def exists(self, path: str) -> bool:
        """Whether a file, a folder or a link, even a dangling one, is there."""
        return os.path.lexists(self.path(path))

    def mode(self, path: str) -> int:
        """Return a file's permission bits."""
        return self.path(path).lstat().st_mode & 0o7777

    def systemctl(self, *arguments: str, check: bool = True) -> str:
        """Run systemctl and return what it printed."""
        return self.run(["systemctl", *arguments], check=check).stdout.strip()

    def unit(self, name: str) -> dict[str, str]:
        """Return all properties of a unit."""
        lines = self.systemctl("show", name).splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def journal(self, unit: str | None = None, *, lines: int | None = None) -> str:
        """Return journal messages of this boot, of one unit or of all, without the prefix."""
        argv = ["journalctl", "--no-pager", "--output=cat", "--boot"]
        argv += [f"--unit={unit}"] if unit else []
        argv += [f"--lines={lines}"] if lines else []
        return self.run(argv).stdout

    def main_pid(self, unit: str) -> int:
        """Return the host's process id of a unit's main process.

        Raises:
            LabError: it has none.
        """
        inside = int(self.unit(unit).get("MainPID", "0"))
        if inside == 0:
            raise LabError(f"{self.name}: {unit} has no main process")
        return self.host_pid(inside)

    def kill(self, host_pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a process of the machine, by the host's process id."""
        os.kill(host_pid, number)

    def host_pid(self, inside: int) -> int:
        """Translate a process id of the machine into the host's."""
        namespace = Path(f"/proc/{self.pid1}/ns/pid").readlink()
        for status in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError, StopIteration):
                line = next(text for text in status.read_text().splitlines() if text.startswith("NSpid:"))
                if line.split()[-1] == str(inside) and (status.parent / "ns/pid").readlink() == namespace:
                    return int(status.parent.name)
        raise LabError(f"{self.name}: no process {inside}")

    @contextlib.contextmanager
    def small_disk(self, path: str, *, size_bytes: int = 4 * 1024 * 1024) -> Iterator[None]:
        """Mount a small ext4 file system at a path of the machine, for tests of full disks; gone after the block."""
        self._small_disks += 1
        file = self._ledger.directory / f"{self.name}-small-{self._small_disks}.ext4"
        device = disks.create_loop(self._ledger, file, size_bytes, owner=self.name)
        number = device.stat().st_rdev
        node = f"/dev/lab-disk-{self._small_disks}"
        self.run(["mknod", node, "b", str(os.major(number)), str(os.minor(number))])
        self.run(["mkdir", "-p", path])
        self.run(["mount", "-t", "ext4", node, path])
        try:
            yield
        finally:
            if self.running():
                self.run(["umount", "--lazy", path])
                self.run(["rm", node])
            disks.remove_loop(file)

    def _init(self) -> LabProcess:
        process = find(self._ledger, "init", owner=self.name)
        if process is None:
            raise LabError(f"machine {self.name} does not run")
        return process

    def _record_init(self, launcher: LabProcess) -> None:
        """Find PID 1: the launcher's only child in another namespace. It dies with its parent, so a kill leaves nothing."""
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
        ours = Path("/proc/self/ns/pid").readlink()

        def child() -> ProcessIdentity | None:
            if not launcher.alive():
                raise RuntimeError(self.log_path.read_text(errors="replace").strip()[-1000:])
            for pid in children.read_text().split():
                if Path(f"/proc/{pid}/ns/pid").readlink() != ours:
                    return ProcessIdentity.of(int(pid))
            return None

        try:
            identity = wait_for(child, timeout=10, what=f"PID 1 of {self.name}", interval=0.01)
        except RuntimeError as error:
            raise LabError(f"machine {self.name} did not start: {error}") from None
        self._ledger.record("process", owner=self.name, name="init", pid=identity.pid, start=identity.start)

    def _wait_started(self, good: Collection[str]) -> None:
        deadline = time.monotonic() + _BOOT_DEADLINE_SECONDS

        def listening() -> bool:
            if not self.running():
                raise RuntimeError(self.log_path.read_text(errors="replace").strip()[-1000:])
            return self.path("/run/systemd/private").exists()

        try:
            wait_for(listening, timeout=_BOOT_DEADLINE_SECONDS, what=f"systemd of {self.name}", interval=0.02)
        except RuntimeError as error:
            raise LabError(f"machine {self.name} ended while booting: {error}") from None
        remaining = max(1.0, deadline - time.monotonic())
        state = self.run(["systemctl", "is-system-running", "--wait"], check=False, timeout=remaining).stdout.strip()
        if state not in good:
            failed = self.systemctl("--failed", "--no-legend", "--plain", check=False)
            raise LabError(f"machine {self.name} is {state or 'unknown'}: {failed}")

    def _import_images(self) -> None:
        with pause_archive().open("rb") as archive:
            done = subprocess.run(
                self.command(["ctr", "-n", "k8s.io", "images", "import", "-"]),
                stdin=archive,
                capture_output=True,
                check=False,
                timeout=60,
            )
        if done.returncode != 0:
            raise LabError(f"{self.name}: pause image not imported: {done.stderr.decode(errors='replace').strip()}")


def inside_root(root: Path, path: str) -> Path:
    """Return where a path of a machine is on the host: links on the way, absolute ones too, stay below the root.

    Raises:
        LabError: the links go round in circles.
    """
    pending = list(reversed(path.strip("/").split("/")))
    found = root
    for _ in range(1000):
        if not pending:
            return found
        name = pending.pop()
        if name == "..":
            found = found.parent if found != root else root
        elif pending and (found / name).is_symlink():
            target = (found / name).readlink()
            found = root if target.is_absolute() else found
            pending += reversed([part for part in target.parts if part != "/"])
        elif name not in {"", "."}:
            found = found / name
    raise LabError(f"too many symbolic links: {path}")
