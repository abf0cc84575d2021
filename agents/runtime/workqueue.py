"""A queue of keys with client-go's semantics, so that no key waits twice and none is processed twice at the same time.

A key that is added while it waits is not queued again. A key that is added while it is processed is queued when that ends.
Delays are timers of the event loop, one per key; of several for one key the earliest counts, as in client-go. Failures are
counted per key and give an exponential back-off, 5 ms to 1000 s unless the controller says otherwise.

One thing is ours: a key may wait *because of the API server*. When that one is back, `retry_api_errors` lets those keys run
without the rest of their back-off, spread over some seconds so that a whole fleet does not ask at once.
"""

import asyncio
from collections import deque
from collections.abc import Hashable
from datetime import timedelta
from random import Random
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)

BASE_DELAY = timedelta(milliseconds=5)
"""First back-off of a key; controller-runtime's default."""

MAX_DELAY = timedelta(seconds=1000)
"""Longest back-off of a key; controller-runtime's default."""

_MAX_DOUBLINGS = 40


class FailureBucket:
    """A token bucket over the failures of all keys of a queue: so many at once, then so many per second; client-go's second limiter.

    Args:
        per_second: failures per second in the long run; client-go's 10.
        burst: failures that wait for nothing but their own back-off; client-go's 100.
    """

    def __init__(self, *, per_second: float = 10.0, burst: int = 100) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._tokens = float(burst)
        self._updated = float("-inf")

    def take(self) -> timedelta:
        """Take a token; return how long to wait until there is one."""
        now = asyncio.get_running_loop().time()
        self._tokens = min(self._burst, self._tokens + (now - self._updated) * self._per_second)
        self._updated = now
        self._tokens -= 1
        return timedelta(seconds=max(0.0, -self._tokens / self._per_second))


class Observer(Protocol):
    """Told what happens to keys, never which; client-go's workqueue metrics."""

    def added(self) -> None:
        """Count a key that was queued."""
        ...

    def retried(self) -> None:
        """Count a key that is queued after a delay."""
        ...

    def waited(self, seconds: float) -> None:
        """Take how long a key was ready before it was taken."""
        ...

    def worked(self, seconds: float) -> None:
        """Take how long a key was processed."""
        ...


class _Nobody:
    """Observes nothing."""

    def added(self) -> None:
        """Take no notice."""

    def retried(self) -> None:
        """Take no notice."""

    def waited(self, seconds: float) -> None:
        """Take no notice."""

    def worked(self, seconds: float) -> None:
        """Take no notice."""


class QueueShutDown(Exception):
    """The queue is shut down and holds no more keys."""


class WorkQueue(Generic[K]):
    """Keys to be processed, each at most once at a time."""

    def __init__(
        self,
        *,
        rng: Random,
        base_delay: timedelta = BASE_DELAY,
        max_delay: timedelta = MAX_DELAY,
        bucket: FailureBucket | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._observer = observer or _Nobody()
        self._rng = rng
        self._bucket = bucket
        self._base_delay = base_delay
        self._max_delay = max_delay
        self._ready: deque[K] = deque()
        self._dirty: dict[K, float] = {}
        """Keys that are queued, or will be when they are done; and since when, on the loop's clock."""
        self._processing: dict[K, float] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._api_errors: set[K] = set()
        self._getters: deque[asyncio.Future[None]] = deque()
        self._shut_down = False

    def __len__(self) -> int:
        """Return how many keys are ready and not yet taken; delayed ones do not count."""
        return len(self._ready)

    def processing(self) -> list[float]:
        """Return for how many seconds each key that was taken is being processed."""
        now = asyncio.get_running_loop().time() if self._processing else 0.0
        return [now - started for started in self._processing.values()]

    def add(self, key: K) -> None:
        """Queue a key now, unless it is queued already."""
        if self._shut_down or key in self._dirty:
            return
        self._observer.added()
        self._dirty[key] = asyncio.get_running_loop().time()
        if key not in self._processing:
            self._enqueue(key)

    async def get(self) -> K:
        """Wait for a key and take it; `done` must follow.

        Raises:
            QueueShutDown: nothing is left and nothing will come.
        """
        while not self._ready:
            if self._shut_down:
                raise QueueShutDown
            await self._wait_ready()
        key = self._ready.popleft()
        now = asyncio.get_running_loop().time()
        self._observer.waited(now - self._dirty.pop(key))
        self._processing[key] = now
        return key

    def done(self, key: K) -> None:
        """Say that a taken key has been processed; queues it again if it was added meanwhile."""
        if (started := self._processing.pop(key, None)) is not None:
            self._observer.worked(asyncio.get_running_loop().time() - started)
        if key in self._dirty:
            self._enqueue(key)

    def add_after(self, key: K, delay: timedelta) -> None:
        """Queue a key after a delay; an earlier time that is already set for it stays."""
        if self._shut_down:
            return
        if delay <= timedelta(0):
            self.add(key)
            return
        self._observer.retried()
        loop = asyncio.get_running_loop()
        due = loop.time() + delay.total_seconds()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(due, self._fire, key)

    def add_rate_limited(self, key: K, *, after: timedelta | None = None, api_error: bool = False) -> timedelta:
        """Count a failure of the key and queue it after its back-off.

        Args:
            key: what failed.
            after: wait this long instead of the back-off; nothing shortens it.
            api_error: the API server was the reason, so `retry_api_errors` may shorten the back-off.

        Returns:
            How long the key waits.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = after
        if delay is None:
            delay = min(self._max_delay, self._base_delay * 2 ** min(failures, _MAX_DOUBLINGS))
            if self._bucket is not None:
                delay = max(delay, self._bucket.take())
        self.add_after(key, delay)
        if api_error and after is None and key in self._timers:
            self._api_errors.add(key)
        return delay

    def retry_api_errors(self, *, spread: timedelta) -> int:
        """Let every key that waits for the API server run within `spread`, and forget its failures.

        Returns:
            How many keys were moved.
        """
        keys = sorted(self._api_errors, key=repr)
        self._api_errors.clear()
        for key in keys:
            self._failures.pop(key, None)
            self.add_after(key, spread * self._rng.random())
        return len(keys)

    def forget(self, key: K) -> None:
        """Forget the failures of a key, so that the next one starts with the shortest back-off."""
        self._failures.pop(key, None)
        self._api_errors.discard(key)

    def num_requeues(self, key: K) -> int:
        """Return how often the key has failed since it was last forgotten."""
        return self._failures.get(key, 0)

    def shut_down(self) -> None:
        """Take no more keys, drop the delayed ones and let `get` end once the ready ones are taken."""
        self._shut_down = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._api_errors.clear()
        while self._getters:
            self._wake_one()

    def _fire(self, key: K) -> None:
        del self._timers[key]
        self._api_errors.discard(key)
        self.add(key)

    def _enqueue(self, key: K) -> None:
        self._ready.append(key)
        self._wake_one()

    def _wake_one(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    async def _wait_ready(self) -> None:
        getter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._getters.append(getter)
        try:
            await getter
        except asyncio.CancelledError:
            if getter.done() and not getter.cancelled() and self._ready:
                self._wake_one()
            raise
