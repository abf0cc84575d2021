"""Long-running programs of a lab: each writes its own id into the ledger before it becomes the program."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.errors import LabError
from tests.lab.state import Ledger, ProcessIdentity, kill_and_wait

# Field 22 of /proc/PID/stat is the start time; the name in field 2 is "sh" here, so it holds no blank. The pid and
# the start time stay the same through exec.
_RECORD = (
    'ledger=$1 owner=$2 name=$3; shift 3; IFS="" read -r stat < /proc/$$/stat; '
    'start=$(set -- $stat; shift 21; echo "$1"); '
    'printf \'{"kind": "process", "owner": "%s", "name": "%s", "pid": %d, "start": %s}\\n\' '
    '"$owner" "$name" $$ "$start" >> "$ledger" && exec "$@"'
)
# The program becomes a child of init: it outlives us, and nobody here has to reap it.
_DETACH = 'log=$1; shift; setsid "$@" < /dev/null >> "$log" 2>&1 & echo $!'


class LabProcess:
    """A program that the lab started, in this Python process or in an earlier one."""

    def __init__(self, name: str, identity: ProcessIdentity) -> None:
        self.name = name
        self.identity = identity

    @property
    def pid(self) -> int:
        """Process id, as the host sees it."""
        return self.identity.pid

    def alive(self) -> bool:
        """Whether it runs."""
        return self.identity.alive()

    def stop(self, *, timeout: float = 10.0) -> None:
        """SIGTERM, and SIGKILL if that does not end it in time."""
        self.identity.send(signal.SIGCONT)
        self.identity.send(signal.SIGTERM)
        deadline = time.monotonic() + timeout
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.kill()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        kill_and_wait([self.identity])

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self.identity.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT after a freeze."""
        self.identity.send(signal.SIGCONT)


def spawn(
    ledger: Ledger,
    name: str,
    argv: Sequence[str],
    *,
    log: Path,
    owner: str = "lab",
    netns: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> LabProcess:
    """Start a program in its own session, as a child of init; its output is appended to a log file.

    Args:
        ledger: where its id is recorded.
        name: short name, for people and for finding it again from another process.
        argv: program and arguments.
        log: file for stdout and stderr.
        owner: what it belongs to: `lab`, or the name of a machine.
        netns: network namespace made by `ip netns add`; None for the host's.
        env: whole environment; None for ours.
        cwd: working directory.
    """
    inside = ["nsenter", f"--net=/run/netns/{netns}"] if netns else []
    recorded = ["/bin/sh", "-c", _RECORD, "sh", str(ledger.path), owner, name, *inside, *argv]
    log.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["/bin/sh", "-c", _DETACH, "sh", str(log), *recorded],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=dict(env) if env is not None else None,
        cwd=cwd,
    )
    pid = int(done.stdout)
    identity = ProcessIdentity.of(pid)
    if identity is None:
        raise LabError(f"{name} ended at once; see {log}")
    # Once more from here, because the shell may not have come to it when somebody undoes the ledger right now.
    ledger.record("process", owner=owner, name=name, pid=pid, start=identity.start)
    return LabProcess(name, identity)


def find(ledger: Ledger, name: str, *, owner: str = "lab") -> LabProcess | None:
    """Return the running process of that name that some process recorded, the newest if there are several."""
    for entry in reversed(ledger.entries("process")):
        if entry["name"] == name and entry["owner"] == owner:
            identity = ProcessIdentity(entry["pid"], entry["start"])
            if identity.alive():
                return LabProcess(name, identity)
    return None


def clean_environment(**extra: str) -> dict[str, str]:
    """Return an environment that depends on nothing of ours but PATH and HOME."""
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/nonexistent", "LANG": "C.UTF-8", **extra}


def tail(path: Path, *, lines: int = 5) -> str:
    """Return the last lines of a log."""
    try:
        return " | ".join(path.read_text(errors="replace").splitlines()[-lines:])[-2000:]
    except FileNotFoundError:
        return ""
