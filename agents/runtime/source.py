"""Where the keys of a controller come from: changes of objects, its own start, or another controller in this process."""

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

from agents.kube.models import KubeObject
from agents.runtime.cache import Informer
from agents.runtime.predicate import Predicate, always
from agents.runtime.reconcile import Request
from agents.runtime.store import key_of
from agents.runtime.workqueue import WorkQueue

T = TypeVar("T", bound=KubeObject)

NO_DELAY = timedelta(0)


class Source(Protocol):
    """Puts keys on a queue."""

    def start(self, queue: WorkQueue[Request]) -> None:
        """Begin to put keys on the queue; returns at once."""
        ...

    async def wait_ready(self) -> None:
        """Wait until what this source looks at is known; workers start after that."""
        ...

    def stop(self) -> None:
        """Put no more keys on the queue."""
        ...


def own_key(item: KubeObject) -> Iterable[Request]:
    """Map an object to its own key."""
    return (key_of(item),)


def fixed_key(request: Request) -> Callable[[KubeObject], Iterable[Request]]:
    """Map every object to one and the same key."""
    return lambda _item: (request,)


class KindSource(Generic[T]):
    """Keys from the changes that an informer sees; what is in its store already counts as appearing.

    Args:
        informer: where the changes come from.
        predicate: which of them count.
        mapper: from an object to keys; an update maps the old and the new object.
        delay: how long a change may wait before its keys are queued, for changes that need not be acted on by a
            whole fleet at once.
    """

    def __init__(
        self,
        informer: Informer[T],
        *,
        predicate: Predicate[T] = always,
        mapper: Callable[[T], Iterable[Request]] = own_key,
        delay: Callable[[T | None, T | None], timedelta] = lambda _old, _new: NO_DELAY,
    ) -> None:
        self._informer = informer
        self._predicate = predicate
        self._mapper = mapper
        self._delay = delay
        self._queue: WorkQueue[Request] | None = None
        self._unsubscribe: Callable[[], None] | None = None

    def start(self, queue: WorkQueue[Request]) -> None:
        """Subscribe to the informer."""
        self._queue = queue
        self._unsubscribe = self._informer.add_handler(self._handle)

    async def wait_ready(self) -> None:
        """Wait until the informer has listed."""
        await self._informer.wait_synced()

    def stop(self) -> None:
        """Unsubscribe from the informer."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _handle(self, old: T | None, new: T | None) -> None:
        if self._queue is None or not self._predicate(old, new):
            return
        requests = dict.fromkeys(request for item in (old, new) if item is not None for request in self._mapper(item))
        delay = self._delay(old, new)
        for request in requests:
            self._queue.add_after(request, delay)


class StartupSource:
    """The same keys once, when the controller starts."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._requests = tuple(requests)

    def start(self, queue: WorkQueue[Request]) -> None:
        """Queue the keys."""
        for request in self._requests:
            queue.add(request)

    async def wait_ready(self) -> None:
        """Return at once: there is nothing to wait for."""

    def stop(self) -> None:
        """Do nothing: no more keys come anyway."""


class ChannelSource:
    """Keys that another controller sends; `app.py` gives the same object to both.

    Sending never blocks. What is sent before the start is kept, each key once, so it is bounded by the number of keys.
    """

    def __init__(self) -> None:
        self._queue: WorkQueue[Request] | None = None
        self._early: dict[Request, None] = {}

    def send(self, request: Request) -> None:
        """Queue a key, or keep it until the controller starts."""
        if self._queue is None:
            self._early[request] = None
        else:
            self._queue.add(request)

    def start(self, queue: WorkQueue[Request]) -> None:
        """Queue what was sent early, and pass on the rest as it comes."""
        self._queue = queue
        for request in self._early:
            queue.add(request)
        self._early.clear()

    async def wait_ready(self) -> None:
        """Return at once: there is nothing to wait for."""

    def stop(self) -> None:
        """Keep what is sent from now on for a later start."""
        self._queue = None
