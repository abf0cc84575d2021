"""Chaos in virtual time: no lab, no root, seconds."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping

import pytest
import structlog

from tests.support.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each asynchronous test in virtual time."""
    return {"virtual": VirtualTimeLoop}


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    """Log nothing: a day has a hundred thousand lines."""
    configuration = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**configuration)
