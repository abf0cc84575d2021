"""Unit tests: no network, no root, virtual time."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.support.clock import FakeClock
from tests.support.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each asynchronous unit test in virtual time."""
    return {"virtual": VirtualTimeLoop}


@pytest.fixture
def clock() -> FakeClock:
    """A clock that follows the virtual event loop."""
    return FakeClock()
