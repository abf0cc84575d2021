"""Unit tests: no network, no root, virtual time."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping

import pytest
import structlog

from tests.support.clock import FakeClock
from tests.support.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each asynchronous unit test in virtual time."""
    return {"virtual": VirtualTimeLoop}


@pytest.fixture(autouse=True)
def _logging_is_put_back() -> Iterator[None]:
    """Undo what a test's own logging set-up did to the process."""
    root = logging.getLogger()
    handlers, level, configuration = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**configuration)


@pytest.fixture
def clock() -> FakeClock:
    """A clock that follows the virtual event loop."""
    return FakeClock()
