"""A client on an API server in memory, and what controllers need of their process."""

from random import Random

import pytest

from agents.kube.client import Client
from agents.runtime.cache import Cache
from agents.runtime.controller import Environment
from agents.runtime.metrics import Metrics
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi


@pytest.fixture
def api() -> FakeApi:
    """An empty API server in memory."""
    return FakeApi()


@pytest.fixture
def client(api: FakeApi) -> Client:
    """A client of that API server."""
    return Client(transport=api, rng=Random(1))


@pytest.fixture
def cache(client: Client, clock: FakeClock) -> Cache:
    """A cache that is not running yet."""
    return Cache(client=client, clock=clock, rng=Random(1))


@pytest.fixture
def environment(clock: FakeClock) -> Environment:
    """Clock, randomness and metrics of a process."""
    return Environment(clock=clock, rng=Random(1), metrics=Metrics())
