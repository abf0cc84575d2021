"""The agent as one file under systemd: one process, one folder, whatever happens."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from image.build import build
from onefile.programs import PROGRAMS
from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.oci import Image
from tests.lab.worker_osc import AGENT_UNIT
from tests.support.documented import ROOT, blocks
from tests.support.onefile import restamped
from tests.support.worker import Worker

DROP_IN = f"/run/systemd/system/{AGENT_UNIT}.d/hostile.conf"
HOSTILE = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "LD_LIBRARY_PATH", "LD_PRELOAD")
HOME = "/opt/bin/.gardener-node-agent.unpacked"


@pytest.fixture(autouse=True)
def one_file(agent: AgentSource) -> None:
    """Only where the agent is one file."""
    if agent.kind != "binary":
        pytest.skip("the agent comes from the source tree")


def unpacked(worker: Worker) -> list[str]:
    """Return what is in the agent's folder."""
    return worker.machine.run(["ls", "-A", HOME]).stdout.split()


def settled(worker: Worker, before: list[str], *, other: bool) -> bool:
    """Return whether there is one version, other than before or the same, and the agent answers."""
    found = unpacked(worker)
    answers = worker.machine.run(["curl", "-sf", "http://127.0.0.1:2751/readyz"], check=False).returncode == 0
    return answers and len(found) == 2 and (found != before) is other


def in_processes(worker: Worker, pattern: str) -> list[str]:
    """Return which processes of the machine have links in /proc that match a pattern and lead into the agent's folder."""
    found = worker.machine.run(["sh", "-c", f"ls -l /proc/[0-9]*/{pattern} 2>/dev/null | grep {HOME}"], check=False)
    return re.findall(r"/proc/(\d+)/", found.stdout)


def test_the_process_that_systemd_started_is_the_agent(worker: Worker) -> None:
    """Contract 1.7: the main process is the interpreter itself, under the program's name, and there is no other."""
    main = worker.machine.unit(AGENT_UNIT)["MainPID"]
    assert worker.machine.run(["ps", "-C", "gardener-node-a", "-o", "pid="]).stdout.split() == [main]
    assert in_processes(worker, "exe") == [main]


def test_programs_of_the_machine_do_not_hold_the_folder(worker: Worker) -> None:
    """What the agent starts, here containerd's and systemd's programs, has no descriptor of the agent's folder."""
    worker.apply(worker.base.with_file("/opt/test/one", "1\n"))
    listed = worker.machine.run(
        ["sh", "-c", "cd /proc; for p in [0-9]*; do ls -l $p/fd 2>/dev/null | sed s,^,$p:,; done"]
    )
    holders = [line.partition(":")[0] for line in listed.stdout.splitlines() if HOME in line]
    assert set(holders) == {worker.machine.unit(AGENT_UNIT)["MainPID"]}


def test_kills_leave_one_folder(worker: Worker) -> None:
    """Ten times SIGKILL: the folder and its lock are all there is, and the agent runs."""
    before = unpacked(worker)
    assert len(before) == 2
    for _ in range(10):
        wait_for(lambda: worker.machine.main_pid(AGENT_UNIT) or None, timeout=20, what="the start")
        worker.machine.systemctl("kill", "--signal=SIGKILL", AGENT_UNIT)
        worker.machine.systemctl("reset-failed", AGENT_UNIT, check=False)
        worker.machine.systemctl("restart", AGENT_UNIT)
    assert unpacked(worker) == before
    worker.wait_applied(worker.publish(worker.base))


def documented(document: str) -> str:
    """Return the block of a document that puts another program in the agent's place."""
    (found,) = (text for _, text in blocks(ROOT / document, "sh") if text.startswith("install -m 0755"))
    return found


def test_an_update_of_its_own_program_unpacks_the_new_one(worker: Worker, agent: AgentSource) -> None:
    """Contract 8.1: the file is replaced as documented while the agent runs; after the restart the folder of the old one is gone."""
    before = unpacked(worker)
    for document, program in (("README.md", restamped(agent.file(), "v9.9.9")), ("docs/migrate.md", agent.file())):
        for place in ("build/bin/gardener-node-agent", "gardener-node-agent"):
            worker.machine.write(f"/root/new/{place}", program, 0o755)
        worker.machine.run(["sh", "-ec", f"cd /root/new; {documented(document)}"])
        look = partial(settled, worker, before, other=program != agent.file())
        wait_for(look, timeout=20, what="the new program")
    worker.machine.run(["rm", "-r", "/root/new"])


def test_it_comes_out_of_the_image_that_is_built(worker: Worker, agent: AgentSource, lab: Lab, tmp_path: Path) -> None:
    """Contract 8.1: the image of `make image`, in a registry, as an OSC names it: the agent takes its own program out of it."""
    registry, program = lab.registry("tls"), PROGRAMS["gardener-node-agent"]
    built = build(program, tmp_path)
    reference = registry.push(Image.read_layout(tmp_path / program.name), "gardener/as-built", agent.version())
    assert reference.endswith(f"@{built.manifest.digest}")
    osc = worker.base.with_image_file(f"/opt/test/{program.name}", reference, f"/{program.name}")
    worker.apply(osc, timeout=90)
    assert worker.differences(osc) == []
    assert worker.machine.read(f"/opt/test/{program.name}") == agent.file()
    assert worker.machine.run([f"/opt/test/{program.name}", "--version"]).stdout.startswith(program.name)


@pytest.fixture
def strict(worker: Worker) -> Iterator[Worker]:
    """A worker whose temporary folders execute nothing, whose /usr cannot be written, and whose agent has a hostile environment."""
    machine = worker.machine
    mounts = [
        "mount -t tmpfs -o noexec,nosuid,nodev tmpfs /tmp",
        "mount -t tmpfs -o noexec,nosuid,nodev tmpfs /var/tmp",
        "mount --bind /usr /usr && mount -o remount,bind,ro /usr",
    ]
    hostile = "\n".join(f"Environment={name}=/tmp/hostile" for name in HOSTILE)
    for command in mounts:
        machine.run(["sh", "-ec", command])
    for name, content in {"sitecustomize.py": b"raise SystemExit(66)", "ld.so": b"no library"}.items():
        machine.write(f"/tmp/hostile/{name}", content)
    machine.write(DROP_IN, f"[Service]\n{hostile}\n".encode())
    machine.systemctl("daemon-reload")
    yield worker
    machine.run(["rm", DROP_IN])
    for folder in ("/usr", "/var/tmp", "/tmp"):
        machine.run(["umount", "--lazy", folder])
    machine.systemctl("daemon-reload")
    machine.systemctl("restart", AGENT_UNIT)


def test_on_a_strict_machine_with_a_hostile_environment(strict: Worker) -> None:
    """Contract 8.1: it unpacks itself, runs, beats and applies where /tmp and /var/tmp execute nothing, /usr is read-only and Python is misled."""
    machine = strict.machine
    assert machine.run(["touch", "/usr/x"], check=False).returncode != 0
    machine.systemctl("stop", AGENT_UNIT)
    machine.run(["rm", "-r", HOME])
    before = str((strict.lease() or {})["spec"]["renewTime"])
    strict.start_agent()
    wait_for(lambda: str((strict.lease() or {})["spec"]["renewTime"]) > before, timeout=30, what="a heartbeat")
    assert len(unpacked(strict)) == 2
    osc = strict.base.with_file("/opt/test/strict", "applied\n")
    strict.apply(osc)
    assert strict.differences(osc) == []
    # What would mislead Python or the loader is kept from the program, and so from what it starts.
    pid = machine.unit(AGENT_UNIT)["MainPID"]
    assert "LD_PRELOAD=/tmp/hostile" in machine.systemctl("show", AGENT_UNIT, "--property=Environment")
    assert "/tmp/hostile" not in machine.run(["cat", f"/proc/{pid}/environ"]).stdout
    assert "/tmp/" not in machine.run(["cat", f"/proc/{pid}/maps"]).stdout
