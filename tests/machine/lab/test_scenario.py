"""The demo's story as a test, so that it cannot rot."""

import pytest

from tests.lab.agent import AgentSource
from tests.lab.cluster import Lab
from tests.lab.scenario import Scenario, table

pytestmark = pytest.mark.e2e


def test_machine_joins_changes_crashes_and_heals(lab: Lab, agent: AgentSource) -> None:
    """The demo: a machine joins, its OSC changes, the agent is killed in the middle of a change; every row holds."""
    scenario = Scenario(lab, agent, print, machine_name="story", pool_name="story")
    try:
        scenario.run()
    except Exception:
        if "story" in lab.machines:
            print(lab.machine("story").journal("gardener-node-agent.service"))
        raise
    finally:
        if "story" in lab.machines:
            with lab.removed_after(lab.machine("story")):
                pass
    assert scenario.rows
    assert all(row.holds for row in scenario.rows), "\n" + table(scenario.rows)
