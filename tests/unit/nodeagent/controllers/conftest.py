"""A systemd per test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.fake_systemd import FakeSystemd
from tests.support.own_node import OwnNode


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[FakeSystemd]:
    """A bus with a systemd behind it."""
    fake = FakeSystemd(tmp_path)
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def machine(tmp_path: Path, host: FakeSystemd) -> OwnNode:
    """A machine without a Node."""
    return OwnNode(tmp_path, host)
