"""Whatever ends a lab, nothing of it stays on the host."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import state
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.network import short_name
from tests.lab.state import Ledger, state_root

pytestmark = pytest.mark.machine

_REPOSITORY = Path(__file__).resolve().parents[3]
_SCRIPT = """
import sys, time
from tests.lab.cluster import Lab
lab = Lab(sys.argv[1])
lab.up()
machine = lab.add_machine("m1", storage="ext4")
with machine.small_disk("/var/lib/small"):
    print("up", flush=True)
    time.sleep(600)
"""


def _leftovers(name: str) -> list[str]:
    """Return whatever of a lab is still on this host."""
    found = [str(path) for path in [state_root() / name] if path.exists()]
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"gardener-lab/{name}/" in line]
    found += [path.name for path in Path("/run/netns").glob(f"gardener-lab-{name}*")]
    found += [str(path) for path in Path("/sys/fs/cgroup").rglob(f"gardener-lab-{name}-*")]
    found += [str(path) for path in Path("/var/tmp").glob(f"gardener-lab-{name}-*")]
    loops = subprocess.run(["losetup", "--list", "--noheadings"], check=True, capture_output=True, text=True).stdout
    found += [line for line in loops.splitlines() if f"{name}" in line]
    found += [str(path) for path in [Path("/sys/class/net", short_name(name))] if path.exists()]
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = command.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"gardener-lab/{name}/" in text and command.parent.name != str(os.getpid()):
            found.append(text)
    return found


@pytest.fixture
def environment(lab: Lab) -> dict[str, str]:
    """Environment for another process of ours; the lab fixture has brought what is missing on this host."""
    assert lab.is_up()
    return {**os.environ, "PYTHONPATH": str(_REPOSITORY)}


def test_killed_lab_is_cleared_by_the_next(environment: dict[str, str]) -> None:
    """A lab whose process was killed with SIGKILL, with a machine on a loop device, is cleared before the next starts."""
    name = f"killed-{os.getpid()}"
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, name], env=environment, cwd=_REPOSITORY, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        owner.kill()
    assert Ledger(name).processes()
    assert _leftovers(name)
    assert name in state.remove_abandoned()
    assert _leftovers(name) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_start_takes_everything_down(environment: dict[str, str], number: signal.Signals) -> None:
    """Ctrl-C while the control plane starts ends what was started, and says so."""
    name = f"cut-{os.getpid()}-{number}"
    # As in a terminal: what is started in the background of a script inherits that it ignores Ctrl-C.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "tests.lab", "--name", name, "up"]
    with subprocess.Popen(command, env=environment, cwd=_REPOSITORY, stderr=subprocess.PIPE, text=True) as started:
        wait_for(lambda: Ledger(name).entries("process"), timeout=20, what="etcd to be started")
        started.send_signal(number)
        _, error = started.communicate(timeout=30)
    assert started.returncode == 130
    assert "interrupted" in error
    assert _leftovers(name) == []


def test_down_removes_a_lab_of_another_process(environment: dict[str, str]) -> None:
    """up, node add, status, shell, node reboot, down: each a process of its own; nothing stays, and names are checked."""
    name = f"cli-{os.getpid()}"

    def lab(*arguments: str, typed: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "tests.lab", "--name", name, *arguments],
            env=environment,
            cwd=_REPOSITORY,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
            input=typed,
        )

    try:
        assert lab("up").returncode == 0
        again = lab("up")
        assert (again.returncode, again.stderr) == (1, f"error: lab '{name}' is up already\n")
        assert lab("node", "add", "one").returncode == 0
        assert "exists already" in lab("node", "add", "one").stderr
        assert "no machine 'two'" in lab("node", "reboot", "two").stderr
        assert lab("node", "reboot", "one").returncode == 0
        assert lab("shell", "one", typed="hostname\n").stdout == "one\n"
        assert "one  10.200.0.11  pid" in lab("status").stdout
    finally:
        assert lab("down").returncode == 0
    assert _leftovers(name) == []
    assert "is not up" in lab("status").stdout
