"""Somebody changes what is ours on a real machine."""

from collections.abc import Iterator

import pytest

from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.worker_osc import AGENT_UNIT, WorkerOsc
from tests.support.worker import UNITS, Worker, service

FILE, UNIT = "/opt/test/ours", "drift.service"


def with_items(osc: WorkerOsc) -> WorkerOsc:
    """Return an OSC with a file and a unit to be changed by somebody else."""
    osc = osc.with_file(FILE, "ours\n", mode=0o644)
    drop_ins = [{"name": "10.conf", "content": "[Service]\nNice=1\n"}]
    osc = osc.with_unit(UNIT, content=service(), enable=True, dropIns=drop_ins)
    return osc.with_unit("cron.service", dropIns=[{"name": "10.conf", "content": "[Service]\nNice=1\n"}])


@pytest.fixture(scope="module")
def looked_after(lab: Lab, agent: AgentSource) -> Iterator[Worker]:
    """A worker with such an OSC, that is looked after every 15 s."""
    with lab.removed_after(lab.add_machine("drift")) as machine:
        machine.write("/usr/lib/systemd/system/cron.service", service().encode())
        machine.systemctl("daemon-reload")
        osc = {"syncPeriod": "15s"}
        worker = Worker.prepare(lab, machine, agent)
        pool = worker.base.pool
        settings = {"secretName": pool.secret_name, "kubernetesVersion": pool.kubernetes_version, **osc}
        worker = Worker.join(lab, machine, agent, operatingSystemConfig=settings)
        worker.apply(with_items(worker.base), timeout=60)
        yield worker


def wait_read(worker: Worker, path: str, content: bytes, *, timeout: float) -> None:
    """Wait until a file holds this again."""
    wait_for(lambda: worker.machine.exists(path) and worker.machine.read(path) == content, timeout=timeout, what=path)


def test_w14_a_changed_file_is_back_within_two_seconds(looked_after: Worker) -> None:
    """Contract 9 W14: noticed through inotify, put right, one event; nobody's file beside it is touched."""
    looked_after.machine.write("/opt/test/foreign", b"mine")
    looked_after.machine.write(FILE, b"theirs\n")
    wait_read(looked_after, FILE, b"ours\n", timeout=2)
    looked_after.wait_event("FileMismatch", containing=FILE)
    assert looked_after.machine.read("/opt/test/foreign") == b"mine"


def test_w14_definitions_of_units_are_put_right_without_a_restart(looked_after: Worker) -> None:
    """Contract 9 W14: unit file and drop-in; the unit runs since before the change, so it is left alone; systemd knows."""
    machine = looked_after.machine
    before = machine.unit(UNIT)["InvocationID"]
    machine.write(f"{UNITS}/{UNIT}", b"[Service]\nExecStart=/bin/false\n")
    machine.path(f"{UNITS}/{UNIT}.d/10.conf").unlink()
    wait_read(looked_after, f"{UNITS}/{UNIT}.d/10.conf", b"[Service]\nNice=1\n", timeout=5)
    wait_read(looked_after, f"{UNITS}/{UNIT}", service().encode(), timeout=5)
    wait_for(lambda: machine.unit(UNIT)["NeedDaemonReload"] == "no", timeout=5, what="systemd to know")
    assert machine.unit(UNIT)["InvocationID"] == before


def test_w14_a_unit_that_was_started_with_the_wrong_definition_is_restarted(looked_after: Worker) -> None:
    """Contract 9 W14: only a restart brings it back to what the OSC says."""
    machine = looked_after.machine
    wrong = service(command="/usr/bin/sleep 9999")
    # The agent is not to be faster than whoever changes and restarts.
    machine.systemctl("kill", "--kill-whom=all", "--signal=SIGSTOP", AGENT_UNIT)
    machine.write(f"{UNITS}/{UNIT}", wrong.encode())
    machine.systemctl("daemon-reload")
    machine.systemctl("restart", UNIT)
    machine.systemctl("kill", "--kill-whom=all", "--signal=SIGCONT", AGENT_UNIT)
    wait_read(looked_after, f"{UNITS}/{UNIT}", service().encode(), timeout=20)
    wait_for(
        lambda: (
            b"infinity"
            in machine.read(f"/proc/{machine.systemctl('show', UNIT, '--property=MainPID', '--value').strip()}/cmdline")
        ),
        timeout=20,
        what="the unit to run what the OSC says",
    )


def test_w14_enablement_and_masks_are_put_right(looked_after: Worker) -> None:
    """Contract 9 W14: `systemctl disable` and `systemctl mask`, noticed at the sync period."""
    machine = looked_after.machine
    machine.systemctl("disable", UNIT)
    machine.systemctl("mask", "cron.service")
    wait_for(lambda: machine.systemctl("is-enabled", UNIT, check=False).strip() == "enabled", timeout=30, what=UNIT)
    wait_for(
        lambda: machine.systemctl("is-enabled", "cron.service", check=False).strip() == "enabled",
        timeout=30,
        what="cron.service",
    )
    looked_after.wait_event("UnitMasked", containing="cron.service")
    looked_after.wait_event("UnitEnableMismatch", containing=UNIT)


def test_w14_a_wrong_mode_is_put_right(looked_after: Worker) -> None:
    """Contract 9 W14: mode and owner, without another event for the next look."""
    machine = looked_after.machine
    machine.run(["chmod", "0777", FILE])
    machine.run(["chown", "1000:1000", FILE])
    wait_for(lambda: machine.mode(FILE) == 0o644, timeout=5, what="the mode")
    wait_for(lambda: machine.run(["stat", "-c", "%u:%g", FILE]).stdout.strip() == "0:0", timeout=5, what="the owner")
    assert machine.unit(AGENT_UNIT)["ActiveState"] == "active"
