"""`status`, `plan` and `diagnose` on a real machine, beside the agent, without it, and without the API server."""

import json
import signal
from pathlib import Path
from typing import Any

import yaml

from tests.lab.api import wait_for
from tests.lab.worker_osc import AGENT_BINARY, AGENT_FOLDER, AGENT_UNIT, WorkerOsc
from tests.support.worker import UNITS, Worker, service

PLANNED, BUNDLE = "/root/planned.yaml", "/root/bundle.tar.gz"
FILE, SECRET, UNIT = "/opt/test/planned", "/opt/test/secret", "planned.service"


def look(worker: Worker, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a command with JSON as its output; returns exit code and document."""
    done = worker.machine.run([AGENT_BINARY, *arguments, "-o", "json"], check=False)
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document


def wait_done(worker: Worker) -> dict[str, Any]:
    """Wait until `status` ends with 0; returns what it says."""
    seen: list[dict[str, Any]] = []

    def done() -> bool:
        code, document = look(worker, "status")
        seen.append(document)
        return code == 0

    try:
        wait_for(done, timeout=60, what="status to be done", interval=1)
    except Exception as error:
        raise AssertionError(f"{error}: {seen[-1]['reasons']}") from error
    return seen[-1]


def tree(worker: Worker) -> str:
    """Return path, inode, mode, owner, size and times of everything where the agent writes, but for its word on itself."""
    folders = ("/etc", "/opt", "/usr/local", "/root", AGENT_FOLDER, "/var/lib/kubelet/config")
    listed = ["find", *folders, "-printf", "%p %i %m %U %G %s %C@ %T@\n"]
    return worker.machine.run(listed, check=False).stdout


def test_a_joined_machine_is_done(worker: Worker) -> None:
    """Contract 6.9, 7.1: everything that is looked at is well; the checksum is the one on the Node."""
    found = wait_done(worker)
    assert found["reasons"] == []
    assert found["applied"]["checksum"] == found["desired"]["checksum"] == worker.applied()
    assert found["secretName"] == worker.base.pool.secret_name
    assert (found["agent"]["state"], found["agent"]["phase"]) == ("active", "applied")
    assert found["heartbeat"]["source"] == "agent"
    assert found["heartbeat"]["ageSeconds"] < 40
    assert found["certificate"]["expired"] is False
    assert found["containerd"]["healthy"]
    assert found["kubelet"]["healthy"]
    text = worker.machine.run([AGENT_BINARY, "status"]).stdout
    assert text.startswith("done\n")
    assert "\x1b" not in text


def test_a_unit_that_fails_is_named(worker: Worker) -> None:
    """Exit code 1, the item with its cause, and what is left; `--wait` ends with the failure."""
    osc = worker.base.with_unit("bad.service", content=service(command="/bin/false", kind="oneshot"), enable=True)
    worker.publish(osc)
    worker.wait_event("OSCFailed", containing="bad.service")
    done = worker.machine.run([AGENT_BINARY, "status", "--wait", "--timeout", "30"], check=False)
    assert done.returncode == 1, done.stdout
    assert "unit bad.service" in done.stdout
    code, found = look(worker, "status")
    assert code == 1
    (item,) = (item for item in found["failing"] if item["item"] == "unit bad.service")
    assert item["cause"]
    assert item["attempt"] >= 1
    assert item["nextTry"] > item["since"]
    assert {"kind": "command", "name": "bad.service"} in found["left"]


def test_a_unit_that_fails_after_its_job_is_seen(worker: Worker) -> None:
    """Contract 7.8: its job was done, so it counts as applied; systemd calls it failed, so the machine is degraded."""
    worker.apply(worker.base.with_unit("late.service", content=service(), enable=True))
    wait_done(worker)
    worker.machine.systemctl("kill", "--signal=SIGKILL", "late.service")
    wait_for(lambda: worker.machine.unit("late.service")["ActiveState"] == "failed", timeout=5, what="the unit to fail")
    code, found = look(worker, "status")
    assert code == 2
    assert [unit["unit"] for unit in found["failedUnits"]] == ["late.service"]
    code, found = look(worker, "diagnose")
    assert (code, found["broken"]) == (1, "systemd")
    assert found["cause"].startswith("unit late.service fails: failed/failed")


def test_an_agent_that_is_down_is_looked_past(worker: Worker) -> None:
    """Neither agent nor API server is needed: exit code 2, and what was applied is still told."""
    wait_done(worker)
    worker.machine.systemctl("stop", AGENT_UNIT)
    try:
        code, found = look(worker, "status")
        planned = look(worker, "plan")
    finally:
        worker.machine.systemctl("start", AGENT_UNIT)
    assert code == 2
    assert found["reasons"][0] == "the agent does not run: its unit is inactive"
    assert found["heartbeat"]["source"] == "file"
    assert found["applied"]["checksum"] == worker.applied()
    assert planned[0] == 0
    assert (planned[1]["items"], planned[1]["commands"]) == ([], [])
    wait_done(worker)


def test_what_is_planned_is_what_is_done_and_planning_changes_nothing(worker: Worker) -> None:
    """Contract 6.2: files and units of the plan are those that change; before that nothing on the machine does."""
    osc = worker.base.with_file(FILE, "public\n", mode=0o644).with_file(SECRET, "hidden\n", mode=0o600)
    osc = osc.with_unit(UNIT, content=service(), enable=True, filePaths=[FILE])
    wait_done(worker)
    units = states(worker)
    found = plan(worker, osc)
    assert states(worker) == units
    assert {item["name"]: item["action"] for item in found["items"]} == {
        FILE: "create",
        SECRET: "create",
        f"{UNITS}/{UNIT}": "create",
        UNIT: "enable",
        "daemon-reload": "reload",
    }
    assert [(one["unit"], one["command"]) for one in found["commands"]] == [(UNIT, "restart")]
    assert found["disruption"] == "serviceRestart"
    assert "hidden" not in json.dumps(found)
    worker.apply(osc)
    assert worker.machine.read(FILE) == b"public\n"
    after = states(worker)
    assert {name for name in after if after[name] != units.get(name)} == {UNIT}

    found = plan(worker, osc.with_file(FILE, "other\n", mode=0o644))
    (item,) = (item for item in found["items"] if item["name"] == FILE)
    assert item["diff"] == f"--- {FILE}\n+++ {FILE}\n@@ -1 +1 @@\n-public\n+other\n"
    assert found["commands"][0]["reasons"] == [f"file {FILE} changes"]


def plan(worker: Worker, osc: WorkerOsc) -> dict[str, Any]:
    """Plan for an OSC, and check that this changed nothing."""
    worker.machine.write(PLANNED, yaml.safe_dump(osc.document()).encode())
    try:
        before = tree(worker)
        code, found = look(worker, "plan", "--osc", PLANNED)
        assert tree(worker) == before
    finally:
        worker.machine.path(PLANNED).unlink()
    assert code == 0
    return found


def states(worker: Worker) -> dict[str, str]:
    """Return the run of each service that is or was active."""
    listed = worker.machine.systemctl("list-units", "--type=service", "--state=active", "--plain", "--no-legend")
    names = [line.split()[0] for line in listed.splitlines() if line.strip()]
    return {name: worker.machine.unit(name)["InvocationID"] for name in names}


def test_nothing_is_broken_and_then_something_is(worker: Worker) -> None:
    """The real API server, systemd, containerd and kubelet; a full disk and a stopped agent are found; the bundle has no key."""
    wait_done(worker)
    code, found = look(worker, "diagnose")
    assert (code, found["broken"]) == (0, None), found
    assert {link["state"] for link in found["links"]} == {"ok"}
    with worker.machine.small_disk("/var/lib/containerd"):
        code, found = look(worker, "diagnose")
    assert (code, found["broken"]) == (1, "disk")
    assert found["cause"] == "the file system of /var/lib/containerd is full"
    worker.machine.systemctl("stop", AGENT_UNIT)
    try:
        code, found = look(worker, "diagnose", "--bundle", BUNDLE)
    finally:
        worker.machine.systemctl("start", AGENT_UNIT)
    assert (code, found["broken"]) == (1, "systemd")
    assert worker.machine.mode(BUNDLE) == 0o600
    text = worker.machine.run(["tar", "--to-stdout", "-xzf", BUNDLE]).stdout
    worker.machine.path(BUNDLE).unlink()
    assert "Starting" in text
    assert "PRIVATE KEY" not in text
    wait_done(worker)


def test_the_runtime_is_broken(worker: Worker) -> None:
    """A containerd that was stopped and a kubelet that is frozen are the first cause, each with all before it in order."""
    wait_done(worker)
    worker.machine.systemctl("stop", "containerd.service")
    try:
        code, found = look(worker, "diagnose")
    finally:
        worker.machine.systemctl("start", "containerd.service")
    assert (code, found["broken"]) == (1, "containerd"), found
    assert "systemctl status containerd" in found["nextStep"]
    # The kubelet may not have noticed yet; nothing else is wrong.
    assert states_of(found).keys() <= {"containerd", "kubelet"}
    wait_done(worker)
    kubelet = worker.machine.main_pid("kubelet.service")
    worker.machine.kill(kubelet, signal.SIGSTOP)
    try:
        code, found = look(worker, "diagnose")
    finally:
        worker.machine.kill(kubelet, signal.SIGCONT)
    assert (code, found["broken"]) == (1, "kubelet"), found
    assert states_of(found) == {"kubelet": "broken"}
    wait_done(worker)


def test_a_masked_agent_is_the_cause(worker: Worker) -> None:
    """Somebody stopped and masked the agent's unit: that it does not run is not said, but why, and what to do."""
    machine, path = worker.machine, f"{UNITS}/{AGENT_UNIT}"
    wait_done(worker)
    machine.systemctl("stop", AGENT_UNIT)
    machine.run(["mv", path, "/root/unit"])
    machine.systemctl("mask", AGENT_UNIT)
    try:
        code, found = look(worker, "diagnose")
    finally:
        machine.run(["mv", "/root/unit", path])
        machine.systemctl("daemon-reload")
        machine.systemctl("start", AGENT_UNIT)
    assert (code, found["broken"], found["cause"]) == (1, "systemd", "the agent's unit is masked")
    assert states_of(found) == {"systemd": "broken"}
    wait_done(worker)


def states_of(found: dict[str, Any]) -> dict[str, str]:
    """Return the links of a diagnosis that are not well."""
    return {link["name"]: link["state"] for link in found["links"] if link["state"] != "ok"}


def test_the_agents_own_files_are_valid(worker: Worker) -> None:
    """Contract 2, 5.4: the configuration that user data brought and the OSC that was applied have no problem."""
    config = Path(worker.base.pool.agent_config_path)
    code, found = look(worker, "validate", str(config), f"{AGENT_FOLDER}/last-applied-osc.yaml")
    assert code == 0, found
    assert [one["kind"] for one in found["files"]] == ["config", "osc"]
