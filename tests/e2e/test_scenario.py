"""The demo's story as a test, so that it cannot rot."""

import pytest

from tests.lab.api import wait_for
from tests.lab.fixtures import Joined
from tests.lab.scenario import table
from tests.lab.verify import differences
from tests.lab.watched import Watched

pytestmark = pytest.mark.e2e


def test_machine_joins_changes_crashes_and_heals(node_story: Watched) -> None:
    """The demo: a machine joins, its OSC changes, the agent is killed in the middle of a change; every row holds."""
    assert node_story.rows
    assert all(row.holds for row in node_story.rows), "\n" + table(node_story.rows)


def test_joined_machine_comes_back_after_a_power_cut(joined: Joined) -> None:
    """A machine of the fixture `joined` is as its OSC says, and again after its power was cut; the lease goes on."""
    machine, scenario = joined.machine, joined.scenario
    assert differences(machine, joined.osc.document()) == []
    renewed = scenario.renewed()
    machine.reboot(graceful=False)
    wait_for(lambda: scenario.renewed() != renewed, timeout=60, what="the lease to be renewed after the reboot")
    assert differences(machine, joined.osc.document()) == []
    seconds = scenario.apply(joined.osc.with_file("/etc/after-reboot", "1"))
    assert machine.read("/etc/after-reboot") == b"1"
    assert seconds < 30
