"""Faults of API servers in memory, one after another, each of random kind and length, with some rest in between."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from random import Random
from typing import NoReturn

from agents.kube.errors import (
    ApiError,
    Conflict,
    DeadlineExceeded,
    Forbidden,
    InvalidResponse,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from tests.support.fake_api import FakeApi

Fault = Callable[[float], Awaitable[None]]
"""Lasts about so many seconds, and is over when it returns."""

ERRORS: tuple[Callable[[], ApiError], ...] = (
    lambda: Unauthorized("no", status=401),
    lambda: Forbidden("no", status=403),
    lambda: Conflict("changed", status=409),
    lambda: TooManyRequests("slow down", status=429, after=timedelta(seconds=7)),
    lambda: ServerError("broken", status=500),
    lambda: InvalidResponse("not json"),
    lambda: Unavailable("connection refused"),
    lambda: DeadlineExceeded("no answer in time"),
)


class Weather:
    """What happens to a process from outside.

    Args:
        apis: its API servers; each fault is one's.
        paths: of which requests fail, where only some do.
        rng: chooses.
        more: faults of other kinds.
    """

    def __init__(self, apis: Sequence[FakeApi], paths: Sequence[str], rng: Random, more: Sequence[Fault] = ()) -> None:
        self.faults: Counter[str] = Counter()
        self._apis = tuple(apis)
        self._paths = tuple(paths)
        self._rng = rng
        self._api = self._apis[0]
        self._kinds = (
            self._errors,
            self._errors,
            self._outage,
            self._slow,
            self._cut,
            self._compact,
            self._silent,
            *more,
        )

    async def run(self) -> NoReturn:
        """Misbehave until cancelled."""
        while True:
            await asyncio.sleep(self._rng.uniform(30, 900))
            kind = self._rng.choice(self._kinds)
            self._api = self._rng.choice(self._apis)
            self.faults[kind.__name__] += 1
            try:
                await kind(self._rng.uniform(5, 240))
            finally:
                self._api.heal()
                self._api.latency = 0.0

    async def _errors(self, seconds: float) -> None:
        self._api.fail(self._rng.choice(ERRORS)(), path=self._rng.choice(self._paths))
        await asyncio.sleep(seconds)

    async def _outage(self, seconds: float) -> None:
        self._api.go_away()
        await asyncio.sleep(seconds * 5)

    async def _slow(self, seconds: float) -> None:
        self._api.latency = self._rng.uniform(1, 40)
        await asyncio.sleep(seconds)

    async def _cut(self, seconds: float) -> None:
        for _ in range(10):
            for stream in list(self._api.streams):
                stream.fail(Unavailable("connection broke"))
            await asyncio.sleep(seconds / 10)

    async def _silent(self, seconds: float) -> None:
        for stream in self._api.streams:
            stream.silent = True
        await asyncio.sleep(seconds)

    async def _compact(self, seconds: float) -> None:
        self._api.compact()
        for stream in list(self._api.streams):
            stream.end()
        await asyncio.sleep(seconds)
