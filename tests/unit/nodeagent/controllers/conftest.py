"""A machine per test."""

from pathlib import Path

import pytest

from tests.support.fake_systemd import FakeSystemd
from tests.support.own_node import OwnNode


@pytest.fixture
async def machine(tmp_path: Path, host: FakeSystemd) -> OwnNode:
    """A machine without a Node."""
    return OwnNode(tmp_path, host)
