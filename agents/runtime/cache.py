"""Local copies of objects, one informer for each kind and selection, shared by all who ask for the same.

An informer is *synced* once it has listed what it selects; it stays so while the API server is away, and what it holds stays
readable. Whether the API server answers at all is another matter: when an outage is over, and every informer has what it selects
again, the cache tells its subscribers, so that keys that wait for the API server need not wait out their back-off.
"""

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Generic, Protocol, TypeVar, cast

from agents.core.clock import Clock
from agents.core.errors import FatalError
from agents.core.logging import get_logger
from agents.kube.client import Client, ObjectList, Selector
from agents.kube.models import KubeObject
from agents.kube.resource import Resource
from agents.kube.watch import READ_DEADLINE_SECONDS, EventType
from agents.runtime.reconcile import Request
from agents.runtime.reflector import Reflector
from agents.runtime.store import Store
from agents.runtime.tasks import run_forever, wait_forever

T = TypeVar("T", bound=KubeObject)
T_contra = TypeVar("T_contra", bound=KubeObject, contravariant=True)

log = get_logger(__name__)


class Handler(Protocol[T_contra]):
    """Is told about each change; must return at once."""

    def __call__(self, old: T_contra | None, new: T_contra | None, /) -> None:
        """Take a change: appeared (None, new), changed (old, new) or gone (old, None)."""
        ...


class Informer(Generic[T]):
    """The objects of one selection. Made by `Cache.informer`."""

    def __init__(
        self,
        *,
        client: Client,
        resource: Resource[T],
        namespace: str | None,
        selector: Selector,
        changed: Callable[[], None],
        recovered: Callable[[], None],
        clock: Clock,
        rng: Random,
        read_deadline: float = READ_DEADLINE_SECONDS,
        optional: bool = False,
        opened: Callable[[str], None] = lambda _resource: None,
    ) -> None:
        self.resource = resource
        self.namespace = namespace
        self._changed = changed
        self._recovered = recovered
        self._store: Store[T] = Store()
        self._handlers: list[Handler[T]] = []
        self._synced = asyncio.Event()
        self._answered = True
        self._reflector = Reflector(
            client=client,
            resource=resource,
            namespace=namespace,
            selector=selector,
            replace=self._replace,
            apply=self._apply,
            connected=self._connected,
            clock=clock,
            rng=rng,
            read_deadline=read_deadline,
            optional=optional,
            opened=opened,
        )

    @property
    def selector(self) -> Selector:
        """Return what is selected now."""
        return self._reflector.selector

    @property
    def synced(self) -> bool:
        """Return whether what is selected now has been listed."""
        return self._synced.is_set()

    @property
    def answered(self) -> bool:
        """Return whether the API server's last answer was a good one; true before the first."""
        return self._answered

    def get(self, key: Request) -> T | None:
        """Return an object as last seen, None if it is not known."""
        return self._store.get(key)

    def list(self) -> list[T]:
        """Return all objects as last seen."""
        return list(self._store)

    async def wait_synced(self) -> None:
        """Wait until what is selected has been listed; without a deadline, because waiting is all one can do."""
        await self._synced.wait()

    def select(self, selector: Selector) -> None:
        """Select other objects from now on.

        The list is made at once; with it what no longer matches goes away, told as deleted. Not synced until then.
        """
        if selector != self._reflector.selector:
            self._synced.clear()
            self._reflector.select(selector)
            self._changed()

    def reconnect(self) -> None:
        """Open the watch anew: its connection is probably dead."""
        self._reflector.reconnect()

    def retry(self) -> None:
        """End a back-off: the API server answers others."""
        self._reflector.retry()

    def add_handler(self, handler: Handler[T]) -> Callable[[], None]:
        """Tell a handler about each change, and now about each object that is known already.

        Returns:
            Function that ends it.
        """
        self._handlers.append(handler)
        for item in self._store:
            self._tell(handler, None, item)
        return lambda: self._handlers.remove(handler) if handler in self._handlers else None

    async def run(self) -> None:
        """Keep up with the API server until cancelled."""
        await self._reflector.run()

    def _replace(self, listed: ObjectList[T]) -> None:
        for old, new in self._store.replace(listed.items):
            self._tell_all(old, new)
        self._synced.set()
        self._changed()

    def _apply(self, event_type: EventType, item: T) -> None:
        change = (self._store.remove if event_type is EventType.DELETED else self._store.put)(item)
        if change is not None:
            self._tell_all(*change)

    def _connected(self, *, answered: bool) -> None:
        if answered is not self._answered:
            self._answered = answered
            self._changed()
            if answered:
                self._recovered()

    def _tell_all(self, old: T | None, new: T | None) -> None:
        for handler in tuple(self._handlers):
            self._tell(handler, old, new)

    def _tell(self, handler: Handler[T], old: T | None, new: T | None) -> None:
        try:
            handler(old, new)
        except FatalError:
            raise
        except Exception as error:
            log.error("Handler failed", resource=self.resource.plural, error=error, exc_info=error)


class Cache:
    """All informers of one API server.

    Args:
        client: the API server.
        clock: for how long informers have been unsynced.
        rng: spreads back-offs.
        read_deadline: longest silence of a watch, in seconds.
        opened: told the resource of each watch that the API server accepted.
    """

    def __init__(
        self,
        *,
        client: Client,
        clock: Clock,
        rng: Random,
        read_deadline: float = READ_DEADLINE_SECONDS,
        opened: Callable[[str], None] = lambda _resource: None,
    ) -> None:
        self._opened = opened
        self._client = client
        self._clock = clock
        self._rng = rng
        self._read_deadline = read_deadline
        self._informers: list[Informer[Any]] = []
        self._group: asyncio.TaskGroup | None = None
        self._unsynced_since: float | None = None
        self._outage = False
        self._recovered: list[Callable[[], None]] = []
        client.on_switch(self.reconnect)

    def __iter__(self) -> Iterator[Informer[Any]]:
        return iter(tuple(self._informers))

    def informer(
        self,
        resource: Resource[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        optional: bool = False,
    ) -> Informer[T]:
        """Return the informer for a selection; a new one starts as soon as the cache runs.

        Of an optional kind there are no objects while it is not served; who asks first for a selection says whether it is one.
        """
        selector = Selector(label=label_selector, field=field_selector)
        for known in self._informers:
            if (known.resource, known.namespace, known.selector) == (resource, namespace, selector):
                return cast("Informer[T]", known)
        informer = Informer(
            client=self._client,
            resource=resource,
            namespace=namespace,
            selector=selector,
            changed=self._update,
            recovered=self._retry,
            clock=self._clock,
            rng=self._rng,
            read_deadline=self._read_deadline,
            optional=optional,
            opened=self._opened,
        )
        self._informers.append(informer)
        self._update()
        if self._group is not None:
            self._start(self._group, informer)
        return informer

    @property
    def synced(self) -> bool:
        """Return whether every informer is synced."""
        return all(informer.synced for informer in self._informers)

    @property
    def unsynced_since(self) -> float | None:
        """Return the monotonic time since which there has always been an informer that was not synced."""
        return self._unsynced_since

    async def wait_synced(self) -> None:
        """Wait until every informer is synced."""
        for informer in self:
            await informer.wait_synced()

    def reconnect(self) -> None:
        """Open all watches anew: their connections were found dead, or other credentials are in use by now."""
        for informer in self._informers:
            informer.reconnect()

    def on_recovery(self, callback: Callable[[], None]) -> None:
        """Call a function each time all informers are in sync again after an outage."""
        self._recovered.append(callback)

    async def run(self) -> None:
        """Run all informers until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._group:
                for informer in self._informers:
                    self._start(self._group, informer)
                await wait_forever()
        finally:
            self._group = None

    def _start(self, group: asyncio.TaskGroup, informer: Informer[Any]) -> None:
        group.create_task(run_forever(f"informer {informer.resource.plural}", informer.run))

    def _retry(self) -> None:
        """Have the others try again as soon as one of them is answered."""
        for informer in self._informers:
            informer.retry()

    def _update(self) -> None:
        if self.synced:
            self._unsynced_since = None
        elif self._unsynced_since is None:
            self._unsynced_since = self._clock.monotonic()
        answered = all(informer.answered for informer in self._informers)
        if not answered:
            self._outage = True
        elif self._outage and self.synced:
            self._outage = False
            for callback in self._recovered:
                callback()
