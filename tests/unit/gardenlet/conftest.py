"""A client on an API server in memory, for what needs only one."""

from random import Random

import pytest

from agents.kube.client import Client
from tests.support.fake_api import FakeApi


@pytest.fixture
def api() -> FakeApi:
    """An empty API server in memory."""
    return FakeApi()


@pytest.fixture
def client(api: FakeApi) -> Client:
    """A client of that API server."""
    return Client(transport=api, rng=Random(1))
