"""One node per test, on the systemd of the folder above: disk below a folder, systemd and API server in this process."""

from pathlib import Path

import pytest

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
