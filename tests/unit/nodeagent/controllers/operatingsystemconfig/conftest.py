"""One node per test, on the systemd of the folder above: disk below a folder, systemd and API server in this process."""

from pathlib import Path

import pytest

from tests.support.drifting import FILES, UNIT
from tests.support.fake_systemd import FakeSystemd
from tests.support.osc_agent import OscAgent


@pytest.fixture
async def agent(tmp_path: Path, host: FakeSystemd) -> OscAgent:
    """The OSC controller on a machine without a Node."""
    return OscAgent(tmp_path, host)


@pytest.fixture
async def node(agent: OscAgent) -> OscAgent:
    """The same, with a registered Node."""
    agent.register_node()
    return agent


@pytest.fixture
async def applied(node: OscAgent) -> OscAgent:
    """A node with three files and a unit that uses two of them."""
    node.publish(files=FILES, units=[UNIT])
    async with node.connected():
        await node.reconcile()
    node.host.jobs.clear()
    return node
