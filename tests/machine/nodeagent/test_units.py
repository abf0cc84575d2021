"""Units: written, enabled, started, stopped, removed; and those that misbehave."""

import time
from dataclasses import replace

import pytest

from tests.lab.api import wait_for
from tests.lab.worker_osc import AGENT_UNIT
from tests.support.worker import UNITS, Worker, service

NAME = "test.service"
NEVER_READY = service("never", kind="notify", extra="TimeoutStartSec=infinity\n")


def test_a_unit_is_written_enabled_and_started(worker: Worker) -> None:
    """Contract 6.6, Appendix C (apply): content, 0600, enabled although `enable` is unset, and running."""
    osc = worker.base.with_unit(NAME, content=service())
    worker.apply(osc)
    assert worker.differences(osc) == []
    assert worker.machine.systemctl("is-enabled", NAME) == "enabled"


@pytest.mark.parametrize("fields", [{"enable": False}, {"command": "stop"}])
def test_a_unit_can_be_stopped(worker: Worker, fields: dict[str, object]) -> None:
    """Contract 6.3: enable false or command stop means stop; only enable false disables."""
    worker.apply(worker.base.with_unit(NAME, content=service()))
    worker.apply(worker.base.with_unit(NAME, content=service(), **fields))
    unit = worker.machine.unit(NAME)
    assert unit["ActiveState"] == "inactive"
    assert unit["UnitFileState"] == ("disabled" if "enable" in fields else "enabled")


def test_a_removed_unit_is_stopped_and_its_files_go(worker: Worker) -> None:
    """Contract 6.6: a unit with content that left the OSC is disabled, stopped and removed, drop-ins and directory too."""
    osc = worker.base.with_unit(
        NAME, content=service(), dropIns=[{"name": "10.conf", "content": "[Service]\nNice=1\n"}]
    )
    worker.apply(osc)
    worker.apply(worker.base)
    assert worker.absent(osc, worker.base) == []
    assert not worker.machine.exists(f"{UNITS}/{NAME}.d")
    assert not worker.machine.exists(f"{UNITS}/multi-user.target.wants/{NAME}")
    assert worker.machine.unit(NAME)["LoadState"] == "not-found"


def test_w37_an_administrators_drop_in_stays(worker: Worker) -> None:
    """Contract 9 W37: drop-ins that nobody here created survive changes and the removal of the unit's own drop-ins."""
    mine = f"{UNITS}/{NAME}.d/99-admin.conf"
    worker.apply(
        worker.base.with_unit(NAME, content=service(), dropIns=[{"name": "10.conf", "content": "[Service]\nNice=1\n"}])
    )
    worker.machine.write(mine, b"[Service]\nNice=5\n")
    worker.apply(worker.base.with_unit(NAME, content=service("changed")))
    assert worker.machine.exists(mine)
    assert not worker.machine.exists(f"{UNITS}/{NAME}.d/10.conf")
    worker.apply(worker.base)
    assert worker.machine.exists(mine)
    worker.machine.run(["rm", "-r", f"{UNITS}/{NAME}.d"])


def test_w17_a_unit_of_the_operating_system_is_restarted_after_the_reload(worker: Worker) -> None:
    """Contract 9 W17: an OS unit whose drop-in left the OSC is restarted with its old definition, after the reload."""
    name = "test-os.service"
    worker.machine.write(f"/usr/lib/systemd/system/{name}", service().encode())
    worker.machine.systemctl("daemon-reload")
    worker.machine.systemctl("start", name)
    worker.apply(worker.base.with_unit(name, dropIns=[{"name": "10.conf", "content": "[Service]\nNice=7\n"}]))
    first = worker.machine.main_pid(name)
    assert worker.machine.run(["ps", "-o", "ni=", "-p", worker.machine.unit(name)["MainPID"]]).stdout.strip() == "7"
    worker.apply(worker.base)
    assert worker.machine.main_pid(name) != first
    assert worker.machine.run(["ps", "-o", "ni=", "-p", worker.machine.unit(name)["MainPID"]]).stdout.strip() == "0"
    # As in Go, a unit of the operating system stays enabled when it leaves the OSC.
    worker.machine.systemctl("disable", "--now", name)
    worker.machine.run(["rm", f"/usr/lib/systemd/system/{name}"])


def test_a_changed_file_restarts_the_units_that_name_it(worker: Worker) -> None:
    """Contract 6.3: a unit whose filePaths contain a changed file is restarted; one that does not is left alone."""
    osc = worker.base.with_file("/opt/test/conf", "1").with_unit(NAME, content=service(), filePaths=["/opt/test/conf"])
    osc = osc.with_unit("other.service", content=service())
    worker.apply(osc)
    before = {name: worker.machine.main_pid(name) for name in (NAME, "other.service", AGENT_UNIT)}
    worker.apply(osc.with_file("/opt/test/conf", "2"))
    after = {name: worker.machine.main_pid(name) for name in before}
    assert after[NAME] != before[NAME]
    assert after["other.service"] == before["other.service"]
    assert after[AGENT_UNIT] == before[AGENT_UNIT]


def test_a_failing_unit_holds_back_nothing_else(worker: Worker) -> None:
    """Contract 6.7: other files and units are applied; event and status name the unit; no annotation until it is mended."""
    applied = worker.applied()
    bad = worker.base.with_unit("bad.service", content=service(command="/bin/false", kind="oneshot"))
    osc = bad.with_unit(NAME, content=service()).with_file("/opt/test/beside", "x")
    worker.publish(osc)
    event = worker.wait_event("OSCFailed", containing="unit bad.service")
    assert event["type"] == "Warning"
    worker.wait_event("SystemDUnitRestart", containing="bad.service failed with error")
    wait_for(lambda: worker.machine.unit(NAME)["ActiveState"] == "active" or None, timeout=10, what="the other unit")
    assert worker.machine.read("/opt/test/beside") == b"x"
    assert worker.applied() == applied
    item = next(item for item in worker.status()["items"] if item["name"] == "unit bad.service")
    assert item["attempt"] >= 1
    assert item["nextTry"]
    worker.apply(worker.base.with_unit("bad.service", content=service()).with_unit(NAME, content=service()))


def test_a_masked_unit_is_named_and_holds_back_nothing_else(worker: Worker) -> None:
    """A masked unit fails alone, named in the event."""
    worker.machine.run(["ln", "-s", "/dev/null", f"{UNITS}/masked.service"])
    worker.machine.systemctl("daemon-reload")
    worker.publish(worker.base.with_unit("masked.service", enable=True).with_file("/opt/test/masked", "x"))
    worker.wait_event("OSCFailed", containing="unit masked.service")
    wait_for(lambda: worker.machine.exists("/opt/test/masked") or None, timeout=5, what="the other file")
    worker.machine.run(["rm", f"{UNITS}/masked.service"])
    worker.machine.systemctl("daemon-reload")


def test_a_disabled_unit_that_does_not_exist_fails_alone(worker: Worker) -> None:
    """Disabling a unit that does not exist is that item's failure; the rest of the OSC is applied."""
    worker.publish(worker.base.with_unit("nowhere.service", enable=False).with_unit(NAME, content=service()))
    worker.wait_event("OSCFailed", containing="unit nowhere.service")
    wait_for(lambda: worker.machine.unit(NAME)["ActiveState"] == "active" or None, timeout=10, what="the other unit")


def test_w26_a_late_failure_is_a_failure(worker: Worker) -> None:
    """Contract 6.7, 9 W26: a job that fails after more than 10 s is a failure of that unit, not an applied OSC."""
    applied = worker.applied()
    slow = service(command="/bin/sh -c 'sleep 12; exit 1'", kind="oneshot")
    worker.publish(worker.base.with_unit("slow.service", content=slow).with_unit(NAME, content=service()))
    event = worker.wait_event("OSCFailed", containing="unit slow.service", timeout=40)
    assert event["type"] == "Warning"
    assert worker.applied() == applied
    assert worker.machine.unit(NAME)["ActiveState"] == "active"


def test_a_slow_unit_is_applied_when_its_job_ends(worker: Worker) -> None:
    """Contract 6.7: a job that takes more than 10 s and succeeds is applied within a look of its end, without a second start."""
    count = "/opt/test/started"
    worker.apply(worker.base.with_file("/opt/test/dir", "x"))
    slow = service(command=f"/bin/sh -c 'echo x >>{count}; sleep 12'", kind="oneshot")
    started = time.monotonic()
    worker.apply(worker.base.with_unit("slow.service", content=slow), timeout=40)
    assert 12 <= time.monotonic() - started < 25
    assert worker.machine.read(count) == b"x\n"
    worker.machine.run(["rm", count])


def test_the_first_pass_over_a_unit_that_never_ends_is_bounded(worker: Worker) -> None:
    """Contract 6.7: a unit whose job never ends delays no other item, and is named as waiting in the status."""
    applied = worker.applied()
    worker.publish(worker.base.with_unit("never.service", content=NEVER_READY).with_unit(NAME, content=service()))
    wait_for(lambda: worker.machine.unit(NAME)["ActiveState"] == "active" or None, timeout=10, what="the other unit")
    wait_for(
        lambda: [item["name"] for item in worker.status()["items"]] == ["unit never.service"] or None,
        timeout=30,
        what="item in the status",
    )
    assert worker.applied() == applied
    worker.publish(worker.base)


def test_own_restart_only_when_bytes_changed(worker: Worker) -> None:
    """Contract 1.8: a changed own file restarts the agent before unit commands; the journal's flag ends false."""
    before = worker.machine.main_pid(AGENT_UNIT)
    config = worker.base.files[worker.base.pool.agent_config_path]["content"]["inline"]["data"] + "# changed\n"
    osc = worker.base.with_file(worker.base.pool.agent_config_path, config, mode=0o600).with_unit(
        NAME, content=service()
    )
    worker.apply(osc, timeout=60)
    assert worker.machine.main_pid(AGENT_UNIT) != before
    assert worker.pending()["mustRestartNodeAgent"] is False
    assert worker.differences(osc) == []


def test_own_unit_is_enabled_whatever_the_osc_says(worker: Worker) -> None:
    """Contract 6.6: gardener-node-agent.service stays enabled with `enable: false`, and is never stopped."""
    unit = {**worker.base.units[AGENT_UNIT], "enable": False}
    osc = replace(worker.base, units={**worker.base.units, AGENT_UNIT: unit})
    worker.apply(osc, timeout=60)
    assert worker.machine.systemctl("is-enabled", AGENT_UNIT) == "enabled"


def test_own_restart_is_not_blocked_by_a_foreign_unit(worker: Worker) -> None:
    """Contract 1.8, Appendix C (own restart): the agent restarts itself for its own change although another unit cannot start."""
    before = worker.machine.main_pid(AGENT_UNIT)
    config = worker.base.files[worker.base.pool.agent_config_path]["content"]["inline"]["data"] + "# again\n"
    bad = worker.base.with_unit("bad.service", content=service(command="/bin/false", kind="oneshot"))
    worker.publish(bad.with_file(worker.base.pool.agent_config_path, config, mode=0o600))
    wait_for(lambda: worker.machine.main_pid(AGENT_UNIT) != before or None, timeout=20, what="own restart")
    worker.wait_event("OSCFailed", containing="unit bad.service", timeout=20)
