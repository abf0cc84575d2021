"""What looks after the Node and the machine's runtime, on real machines: real units, a real kubelet and a real containerd."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.worker_osc import AGENT_UNIT, WorkerOsc
from tests.support.worker import Worker, service

CONTAINERD, KUBELET = "containerd.service", "kubelet.service"
RESTART = "worker.gardener.cloud/restart-systemd-services"
SECRET_NAME = "worker.gardener.cloud/gardener-node-agent-secret-name"
READY = "SystemdUnitsReady"


@pytest.fixture(scope="module")
def joined(lab: Lab, agent: AgentSource) -> Iterator[Worker]:
    """A worker whose units are checked as often as may be configured."""
    with lab.removed_after(lab.add_machine("looked-after")) as machine:
        yield Worker.join(lab, machine, agent, systemdUnitCheck={"syncPeriod": "15s", "stuckThreshold": "30s"})


def node_path(worker: Worker) -> str:
    """Return the path of the worker's Node."""
    return f"/api/v1/nodes/{worker.machine.name}"


def ask_restart(worker: Worker, value: str) -> None:
    """Set the restart annotation, and wait until it is gone."""
    worker.lab.api.patch(node_path(worker), {"metadata": {"annotations": {RESTART: value}}})
    wait_for(
        lambda: RESTART not in worker.node()["metadata"]["annotations"], timeout=30, what="annotation to be removed"
    )


def condition(worker: Worker, kind: str) -> dict[str, Any]:
    """Return a condition of the Node; empty if there is none."""
    found = worker.node()["status"].get("conditions", [])
    return next((item for item in found if item["type"] == kind), {})


def wait_condition(worker: Worker, status: str, reason: str, message: str, *, timeout: float = 25) -> dict[str, Any]:
    """Wait until the unit condition says this."""

    def look() -> dict[str, Any] | None:
        found = condition(worker, READY)
        same = (found.get("status"), found.get("reason")) == (status, reason) and message in found.get("message", "")
        return found if same else None

    return wait_for(look, timeout=timeout, what=f"condition {status} {reason} {message!r}", interval=0.2)


def wait_new_agent(worker: Worker, before: int, *, timeout: float) -> int:
    """Wait for another process of the agent; returns its id."""

    def look() -> int | None:
        pid = worker.machine.main_pid(AGENT_UNIT)
        return pid if pid != before else None

    return wait_for(look, timeout=timeout, what="another process of the agent")


def written_by_agent(content: bytes) -> dict[str, Any] | None:
    """Return the configuration if the agent has written it, None for what gardenlet rendered."""
    try:
        document: dict[str, Any] = json.loads(content)
    except ValueError:
        return None
    return document


def test_units_are_restarted_by_annotation(worker: Worker) -> None:
    """Contract 7.2: blanks, duplicates and unknown units: each unit once, Warning events, the annotation goes; we come last."""
    worker.apply(worker.base.with_unit("test.service", content=service()))
    before = {unit: worker.machine.main_pid(unit) for unit in ("test.service", KUBELET, AGENT_UNIT)}
    starts = worker.machine.journal("test.service").count("Started")
    ask_restart(worker, " test , kubelet.service,test.service,,unknown, gardener-node-agent")
    wait_new_agent(worker, before[AGENT_UNIT], timeout=15)
    assert worker.machine.main_pid("test.service") != before["test.service"]
    assert worker.machine.main_pid(KUBELET) != before[KUBELET]
    assert worker.machine.journal("test.service").count("Started") == starts + 1
    worker.wait_event("SystemDUnitRestart", containing="unit unknown.service failed with error no such unit")
    told = [
        (event["reportingComponent"], event["type"], event["message"]) for event in worker.events("SystemDUnitRestart")
    ]
    assert ("node", "Normal", "processed restart of unit test.service") in told


def test_units_become_a_condition(worker: Worker) -> None:
    """Contract 7.8, Appendix C (unit states): failed, stuck, inactive, not loaded and active against the OSC, on real units; then well again."""
    hang = service(command="/bin/sh -c 'while test -e /run/hang; do sleep 0.1; done'", kind="oneshot")
    osc = worker.base.with_unit("test.service", content=service()).with_unit("hang.service", content=hang)
    osc = osc.with_unit("off.service", content=service(), enable=False)
    osc = osc.with_unit("test.timer", content="[Timer]\nOnActiveSec=1h\n[Install]\nWantedBy=timers.target\n")
    worker.apply(osc)
    well = wait_condition(worker, "True", "AllUnitsHealthy", "")
    worker.machine.systemctl("kill", "--signal=SIGKILL", "test.service")
    failed = wait_condition(worker, "False", "UnhealthyUnits", "test.service: failed")
    assert failed["message"] == "test.service: failed"
    assert failed["lastTransitionTime"] > well["lastTransitionTime"]
    assert condition(worker, "Ready")["status"] == "True"
    worker.machine.run(["touch", "/run/hang"])
    worker.machine.systemctl("start", "--no-block", "hang.service")
    worker.machine.systemctl("start", "off.service")
    worker.machine.systemctl("stop", "test.timer")
    wait_condition(
        worker,
        "False",
        "UnhealthyUnits",
        "off.service: active but should be disabled; test.service: failed; test.timer: inactive but should be enabled",
    )
    stuck = wait_condition(worker, "False", "UnhealthyUnits", "hang.service: stuck in activating for ", timeout=50)
    assert stuck["lastTransitionTime"] == failed["lastTransitionTime"]
    assert stuck["lastHeartbeatTime"] > failed["lastHeartbeatTime"]
    worker.machine.run(["rm", "/run/hang"])
    worker.machine.systemctl("start", "test.service", "test.timer")
    worker.machine.systemctl("stop", "off.service")
    wait_condition(worker, "True", "AllUnitsHealthy", "")


def test_a_lost_internal_ip_is_put_back(worker: Worker) -> None:
    """Contract 7.5, Appendix C (health): addresses that a kubelet lost are put back, and its conditions stay; five changes to ready are said."""
    status = f"{node_path(worker)}/status"
    before = worker.node()["status"]
    internal = next(item for item in before["addresses"] if item["type"] == "InternalIP")
    worker.machine.systemctl("stop", KUBELET)
    try:
        worker.lab.api.patch(status, {"status": {"addresses": None}})
        wait_for(
            lambda: worker.node()["status"].get("addresses") == [internal], timeout=5, what="internal IP", interval=0.02
        )
        worker.wait_event("kubelet", containing=f"the lost internal IP {internal['address']} was put back")
        after = {item["type"]: item["status"] for item in worker.node()["status"]["conditions"]}
        assert after == {item["type"]: item["status"] for item in before["conditions"]}
        for _ in range(5):
            for value in ("False", "True"):
                conditions = worker.node()["status"]["conditions"]
                changed = [{**item, "status": value} if item["type"] == "Ready" else item for item in conditions]
                worker.lab.api.patch(status, {"status": {"conditions": changed}})
                # The agent looks at each change; one that it missed would not count.
                time.sleep(0.7)
        event = worker.wait_event("kubelet", containing="at least 5 times in 10m0s")
        assert event["type"] == "Warning"
    finally:
        worker.machine.systemctl("start", KUBELET)


def test_w05_kubelet_that_answers_500_is_an_ordinary_failure(worker: Worker) -> None:
    """Contract 7.5, 9 W5: a kubelet whose health endpoint answers 500 is a Warning with the status; the agent goes on."""
    # A failure that an earlier test has left behind would not be said again.
    worker.machine.systemctl("restart", AGENT_UNIT)
    pid = worker.machine.main_pid(AGENT_UNIT)
    answer = "HTTP/1.1 500 Internal Server Error\\r\\nContent-Length: 3\\r\\n\\r\\nbad"
    script = (
        "import socket\ns=socket.socket()\ns.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        f's.bind(("127.0.0.1", 10248))\ns.listen()\nwhile True:\n c,_=s.accept()\n c.recv(9999)\n c.sendall(b"{answer}")\n c.close()\n'
    )
    worker.machine.systemctl("stop", KUBELET)
    worker.machine.run(["systemd-run", "--unit=answers-500", "/usr/bin/python3", "-c", script])
    try:
        event = worker.wait_event("kubelet", containing="status=500", timeout=40)
        assert event["type"] == "Warning"
        assert "bad" in event["message"]
        assert worker.machine.main_pid(AGENT_UNIT) == pid
    finally:
        worker.machine.systemctl("stop", "answers-500")
        worker.machine.systemctl("start", KUBELET)
    worker.wait_event("kubelet", containing="kubelet is healthy", timeout=40)


def test_two_nodes_with_one_hostname(worker: Worker) -> None:
    """Contract 1.4: an agent that starts while two Nodes have its host name stays up, says so on both, and goes on when one is gone."""
    twin = f"{worker.machine.name}-twin"
    labels = {"kubernetes.io/hostname": worker.machine.name}
    worker.lab.api.create(
        "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": twin, "labels": labels}}
    )
    try:
        worker.machine.systemctl("restart", AGENT_UNIT)
        event = worker.wait_event("HostNameNotUnique", containing=twin, timeout=30)
        assert event["type"] == "Warning"
        pid = worker.machine.main_pid(AGENT_UNIT)
        lease = worker.lease()
        assert lease is not None
    finally:
        worker.lab.delete_node(twin)
    wait_for(
        lambda: (found := worker.lease()) is not None and found["spec"]["renewTime"] != lease["spec"]["renewTime"],
        timeout=20,
        what="heartbeat after the other Node was gone",
    )
    assert worker.machine.main_pid(AGENT_UNIT) == pid


def test_a_changed_hostname_starts_the_agent_again(worker: Worker) -> None:
    """Contract 7.6: another host name is said and ends the process within a look; with the old one back, all is as before."""
    name, before = worker.machine.name, worker.machine.main_pid(AGENT_UNIT)
    worker.machine.run(["hostname", "renamed"])
    try:
        wait_new_agent(worker, before, timeout=50)
        worker.wait_event("HostNameChanged", containing=f"host name changed from {name} to renamed")
    finally:
        worker.machine.run(["hostname", name])
        worker.machine.systemctl("restart", AGENT_UNIT)
    worker.apply(worker.base.with_file("/opt/test/renamed", "x"))


def test_a_changed_label_leads_to_another_osc(lab: Lab, agent: AgentSource) -> None:
    """Contract 7.7, 9 W6: the label's new name goes into the file, 0600, and the agent comes back with the new Secret; an empty one is ignored."""
    with lab.removed_after(lab.add_machine("relabelled")) as machine:
        worker = Worker.join(lab, machine, agent, systemdUnitCheck={"syncPeriod": "20s", "stuckThreshold": "45s"})
        path, before = worker.base.pool.agent_config_path, machine.main_pid(AGENT_UNIT)
        config = machine.read(path)

        def label(value: str | None) -> None:
            lab.api.patch(node_path(worker), {"metadata": {"labels": {SECRET_NAME: value}}})

        label("")
        worker.wait_event("SecretNameIgnored", containing="empty or gone")
        assert (machine.main_pid(AGENT_UNIT), machine.read(path)) == (before, config)
        label(worker.base.pool.secret_name)
        pool = replace(worker.base.pool, name="pool-relabelled-next")
        osc = replace(WorkerOsc.for_pool(pool), kubelet=worker.base.kubelet).with_file("/opt/test/next", "x")
        checksum = lab.publish_osc(osc)
        label(pool.secret_name)
        rewritten = wait_for(lambda: written_by_agent(machine.read(path)), timeout=30, what="new file", interval=0.005)
        wait_new_agent(worker, before, timeout=30)
        worker.wait_applied(checksum, timeout=60)
        assert machine.read("/opt/test/next") == b"x"
        assert machine.mode(path) == 0o600
        assert pool.secret_name in machine.read(path).decode()
        assert rewritten["controllers"]["operatingSystemConfig"]["secretName"] == pool.secret_name
        assert rewritten["controllers"]["systemdUnitCheck"] == {"syncPeriod": "20s", "stuckThreshold": "45s"}
        assert rewritten["server"]["healthProbes"]["port"] == 2751
        assert worker.refused() == []


def test_a_label_that_changed_while_the_agent_was_away(lab: Lab, agent: AgentSource) -> None:
    """Contract 1.5, 7.7: an agent that may no longer read the Secret in its file keeps its heartbeat and follows the label."""
    with lab.removed_after(lab.add_machine("absent")) as machine:
        worker = Worker.join(lab, machine, agent)
        machine.systemctl("stop", AGENT_UNIT)
        lab.api.patch(node_path(worker), {"metadata": {"labels": {SECRET_NAME: "not-there-yet"}}})
        before = worker.lease()
        assert before is not None
        machine.systemctl("start", AGENT_UNIT)
        worker.wait_event("SecretNameIgnored", containing="secret not-there-yet is not there or must not be read")
        wait_for(
            lambda: (found := worker.lease()) is not None and found["spec"]["renewTime"] != before["spec"]["renewTime"],
            timeout=20,
            what="heartbeat without the OSC's Secret",
        )
        pool = replace(worker.base.pool, name="pool-absent-next")
        checksum = lab.publish_osc(WorkerOsc.for_pool(pool).with_file("/opt/test/next", "x"))
        lab.api.patch(node_path(worker), {"metadata": {"labels": {SECRET_NAME: pool.secret_name}}})
        worker.wait_applied(checksum, timeout=60)
        assert machine.read("/opt/test/next") == b"x"
