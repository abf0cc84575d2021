"""Clients of the node agent whose API server is in memory."""

from random import Random

from agents.core.clock import Clock
from agents.kube.client import Client
from agents.kube.server_clock import ServerClock
from nodeagent.credentials import ClientFactory
from tests.support.fake_api import FakeApi


class InMemoryClients(ClientFactory):
    """All of them talk to one API server."""

    def __init__(self, api: FakeApi, clock: Clock) -> None:
        super().__init__(
            clock=ServerClock(clock=clock, name="test"), rng=Random(1), observe=lambda _method, _code, _seconds: None
        )
        self._api = api

    def client(self, *_: object, **__: object) -> Client:
        """Return a client of that API server."""
        return Client(transport=self._api, rng=Random(1))
