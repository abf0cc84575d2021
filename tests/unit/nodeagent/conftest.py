"""A systemd per test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.fake_systemd import FakeSystemd


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[FakeSystemd]:
    """A bus with a systemd behind it."""
    fake = FakeSystemd(tmp_path)
    await fake.start()
    yield fake
    await fake.stop()
