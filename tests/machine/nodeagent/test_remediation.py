"""A kubelet and a containerd that hang, on real machines, with Gardener's minute: several machines at once, because it takes that long."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.worker_osc import AGENT_UNIT
from tests.support.worker import Worker

CONTAINERD, KUBELET = "containerd.service", "kubelet.service"
STOP_AT_ONCE = b"[Service]\nTimeoutStopSec=2\n"


@pytest.fixture(scope="module")
def workers(lab: Lab, agent: AgentSource) -> Iterator[dict[str, Worker]]:
    """Four workers whose units are killed two seconds after they were asked to stop."""
    with ExitStack() as stack:
        found = {}
        for name in ("frozen-kubelet", "frozen-containerd", "full-disk", "crash-loop"):
            machine = stack.enter_context(lab.removed_after(lab.add_machine(name)))
            found[name] = Worker.join(lab, machine, agent)
            for unit in (CONTAINERD, KUBELET):
                machine.write(f"/etc/systemd/system/{unit}.d/99-test.conf", STOP_AT_ONCE)
            machine.systemctl("daemon-reload")
        yield found


def pid_of(worker: Worker, unit: str) -> int:
    """Return a unit's main process."""
    return worker.machine.main_pid(unit)


def wait_restarted(worker: Worker, unit: str, before: int) -> None:
    """Wait until a unit runs with another process."""
    wait_for(
        lambda: worker.machine.unit(unit)["ActiveState"] == "active" and pid_of(worker, unit) != before,
        timeout=150,
        what=f"restart of {unit}",
        interval=0.5,
    )


def crash(worker: Worker) -> None:
    """Let the kubelet end as often as systemd starts it."""
    drop_in = b"[Service]\nExecStart=\nExecStart=/bin/false\nRestartSec=1\n[Unit]\nStartLimitIntervalSec=0\n"
    worker.machine.write(f"/etc/systemd/system/{KUBELET}.d/98-crash.conf", drop_in)
    worker.machine.systemctl("daemon-reload")
    worker.machine.systemctl("kill", "--signal=SIGKILL", KUBELET)


def test_what_hangs_for_a_minute_is_restarted_unless_the_disk_is_full(workers: dict[str, Worker]) -> None:
    """Contract 7.5, 7.9, 9 W25, Appendix C (health): frozen for a minute, restarted, each alone; not with a full disk, nor what systemd starts anew, said once."""
    kubelet, containerd, full, crashing = workers.values()
    before = {
        (worker.machine.name, unit): pid_of(worker, unit)
        for worker in workers.values()
        for unit in (CONTAINERD, KUBELET, AGENT_UNIT)
    }

    def unchanged(worker: Worker, *units: str) -> bool:
        return all(pid_of(worker, unit) == before[worker.machine.name, unit] for unit in units)

    with full.machine.small_disk("/var/lib/kubelet"):
        full.machine.run(["sh", "-c", "head -c 100M /dev/zero > /var/lib/kubelet/filler || true"])
        kubelet.machine.kill(pid_of(kubelet, KUBELET), signal.SIGSTOP)
        containerd.machine.kill(pid_of(containerd, CONTAINERD), signal.SIGSTOP)
        full.machine.kill(pid_of(full, KUBELET), signal.SIGSTOP)
        crash(crashing)
        wait_restarted(kubelet, KUBELET, before["frozen-kubelet", KUBELET])
        wait_restarted(containerd, CONTAINERD, before["frozen-containerd", CONTAINERD])
        full.wait_event("kubelet", containing="/var/lib/kubelet is on a full disk", timeout=60)
        assert unchanged(full, KUBELET, CONTAINERD, AGENT_UNIT)
    wait_restarted(full, KUBELET, before["full-disk", KUBELET])
    crashing.wait_event("kubelet", containing="not restarted: systemd is at work on it")
    assert [e for e in crashing.events("SystemDUnitRestart") if e["reportingComponent"] == "health-check"] == []
    assert unchanged(crashing, CONTAINERD, AGENT_UNIT)
    assert unchanged(kubelet, CONTAINERD, AGENT_UNIT)
    assert unchanged(containerd, KUBELET, AGENT_UNIT)
    for worker, name in ((kubelet, "kubelet"), (containerd, "containerd")):
        first = worker.wait_event(name, containing=f"{name} is unhealthy: {name} does not answer")
        second = worker.wait_event(name, containing="is unhealthy for more than 1m0s, restarting it")
        assert (first["type"], second["type"]) == ("Warning", "Warning")
        assert (
            worker.wait_event("SystemDUnitRestart", containing=f"{name}.service")["reportingComponent"]
            == "health-check"
        )
        worker.wait_event(name, containing=f"{name} is healthy", timeout=60)
    assert len(full.events("kubelet")) <= 6
