"""Keeps a store equal to what the API server has: list, watch from there, and start over when that is no longer possible.

A watch that ends, by the server's plan or by a failure, is continued from the last version seen; bookmarks move that version on.
A new list is made after a 410 (at once, but for a second 410 in a row), after three failures in a row (an etcd that was restored from a backup has versions that are lower
than ours, and a watch would wait for them in silence), and when other objects are selected. Failures back off as client-go's
reflector does: 0.8 s, doubled up to 30 s, each up to twice as long at random, and from the start again after 2 minutes without
one; up to 2.5 s only while there is no answer at all, which costs no server anything: an agent that was restarted during an outage has
no Node to renew a Lease for until it has listed. A server that asks to wait is obeyed. A watch that ends at once without an event
counts as a failure, so nothing here can spin.

Nothing ends a reflector but cancelling it: an API server that is away, or says 403, is waited for. Of an optional kind that is not
served there are no objects: that is an answer, asked for again at leisure, since its CRD may come.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Generic, NoReturn, Protocol, TypeVar

from agents.core.clock import Clock
from agents.core.errors import AgentError, FatalError, RetriableError
from agents.core.logging import get_logger
from agents.kube.client import Client, ObjectList, Selector
from agents.kube.errors import DeadlineExceeded, Gone, NotFound, Unavailable, UnexpectedStatus
from agents.kube.models import KubeObject
from agents.kube.resource import Resource
from agents.kube.watch import READ_DEADLINE_SECONDS, EventType

T = TypeVar("T", bound=KubeObject)

log = get_logger(__name__)

FIRST_BACKOFF = timedelta(milliseconds=800)
LONGEST_BACKOFF = timedelta(seconds=30)
LONGEST_BACKOFF_UNREACHABLE = timedelta(seconds=2.5)
"""While nothing answers; times up to two, as the others. An attempt that is under way then may last 3 s longer, and still a heartbeat
comes within 10 s of the server's return."""
BACKOFF_RESET_SECONDS = 120.0
"""client-go's: after this long without a failure the back-off starts anew."""

SHORT_WATCH_SECONDS = 1.0
"""A watch that ends sooner and without an event has failed; client-go's."""

MISSING_KIND_WAIT = timedelta(seconds=30)
"""Until an optional kind that is not served is asked for again; times up to two."""

FAILURES_BEFORE_RELIST = 3

FAILURES_BEFORE_NEWS = 3
"""An outage is told at level error from this many failures on, once."""


class Connected(Protocol):
    """Is told how the last exchange with the API server went."""

    def __call__(self, *, answered: bool) -> None:
        """Take the news."""
        ...


class Reflector(Generic[T]):
    """Feeds one store.

    Args:
        client: API server.
        resource: kind of the objects.
        namespace: None for all.
        selector: which of them.
        replace: called with each complete list.
        apply: called with each change.
        connected: told whether the API server answered or failed us.
        clock: measures time between failures.
        rng: spreads the back-off.
        read_deadline: longest silence of a watch, in seconds.
        optional: whether the kind may be missing.
        opened: told the resource of each watch that the API server accepted.
    """

    def __init__(
        self,
        *,
        client: Client,
        resource: Resource[T],
        namespace: str | None,
        selector: Selector,
        replace: Callable[[ObjectList[T]], None],
        apply: Callable[[EventType, T], None],
        connected: Connected,
        clock: Clock,
        rng: Random,
        read_deadline: float = READ_DEADLINE_SECONDS,
        optional: bool = False,
        opened: Callable[[str], None] = lambda _resource: None,
    ) -> None:
        self._opened = opened
        self._client = client
        self._resource = resource
        self._namespace = namespace
        self._selector = selector
        self._replace = replace
        self._apply = apply
        self._connected = connected
        self._clock = clock
        self._rng = rng
        self._read_deadline = read_deadline
        self._optional = optional
        self._version: str | None = None
        self._failures = 0
        self._failed_at = 0.0
        self._outage = 0
        self._gone = False
        self._scope: asyncio.Timeout | None = None
        self._watching = False
        self._waiting = False
        self._reconnecting = False

    @property
    def selector(self) -> Selector:
        """Return which objects are selected now."""
        return self._selector

    def select(self, selector: Selector) -> None:
        """Select other objects, and list at once."""
        self._selector = selector
        self._reconnecting = False
        scope, self._scope = self._scope, None
        if scope is not None:
            # A timeout that is due now is the way to interrupt whatever the reflector waits for.
            scope.reschedule(asyncio.get_running_loop().time())

    def reconnect(self) -> None:
        """Open the watch anew, from where it is: somebody found out that connections to the API server are dead.

        The server's silence would tell as well, but only after the read deadline. A back-off ends, too.
        """
        if self._watching or self._waiting:
            self._interrupt()

    def retry(self) -> None:
        """Try again now if there is a failure to recover from: the API server answers others."""
        if self._waiting:
            self._interrupt()

    def _interrupt(self) -> None:
        scope, self._scope = self._scope, None
        if scope is not None:
            self._reconnecting = True
            scope.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> NoReturn:
        """List and watch until cancelled."""
        while True:
            try:
                async with asyncio.timeout(None) as self._scope:
                    await self._list_and_watch()
            except TimeoutError:
                if self._reconnecting:
                    log.debug("Watch opened anew", resource=self._resource.plural)
                    self._reconnecting = False
                    continue
                log.debug("Other objects selected", resource=self._resource.plural)
                self._version = None
                self._failures = 0

    async def _list_and_watch(self) -> NoReturn:
        while True:
            try:
                if self._version is None:
                    await self._list()
                else:
                    self._watching = True
                    try:
                        await self._watch(self._version)
                    finally:
                        self._watching = False
            except Gone as error:
                log.debug("Version is too old, listing again", resource=self._resource.plural, error=error)
                if self._gone:
                    await self._back_off(error)
                self._gone = True
                self._version = None
            except FatalError:
                raise
            except NotFound as error:
                await (self._missing() if self._optional else self._back_off(error))
            except Exception as error:  # noqa: BLE001 - whatever it is, the cache must live on; it is logged below
                await self._back_off(error)

    async def _list(self) -> None:
        selector = self._selector
        listed = await self._client.list(self._resource, namespace=self._namespace, selector=selector)
        if selector is not self._selector:
            return  # other objects were selected while the answer was on its way
        self._version = listed.resource_version
        self._replace(listed)
        self._answered()
        log.debug("Listed", resource=self._resource.plural, objects=len(listed.items))

    async def _watch(self, version: str) -> None:
        events = 0
        opened = self._clock.monotonic()
        async with self._client.watch(
            self._resource,
            namespace=self._namespace,
            selector=self._selector,
            resource_version=version,
            read_deadline=self._read_deadline,
        ) as watch:
            log.debug("Watch started", resource=self._resource.plural, namespace=self._namespace)
            self._opened(self._resource.plural)
            self._answered()
            async for event in watch:
                events += 1
                if event.object is not None:
                    self._apply(event.type, event.object)
                if event.resource_version:
                    self._version = event.resource_version
                self._failures = 0
                self._gone = False
        if not events and self._clock.monotonic() - opened < SHORT_WATCH_SECONDS:
            raise UnexpectedStatus("watch ended at once", resource=self._resource.plural)

    async def _missing(self) -> None:
        """Have no objects, until the kind is there."""
        self._version = None
        self._replace(ObjectList((), ""))
        self._answered()
        log.debug("Kind is not served, so there are no objects", resource=self._resource.plural)
        await self._wait(MISSING_KIND_WAIT * (1 + self._rng.random()))

    def _answered(self) -> None:
        if self._outage >= FAILURES_BEFORE_NEWS:
            log.info("List and watch work again", resource=self._resource.plural, namespace=self._namespace)
        self._outage = 0
        self._connected(answered=True)

    async def _back_off(self, error: Exception) -> None:
        if self._clock.monotonic() - self._failed_at > BACKOFF_RESET_SECONDS:
            self._failures = 0
        longest = LONGEST_BACKOFF_UNREACHABLE if isinstance(error, Unavailable | DeadlineExceeded) else LONGEST_BACKOFF
        delay = min(longest, FIRST_BACKOFF * 2 ** min(self._failures, 10)) * (1 + self._rng.random())
        if isinstance(error, RetriableError) and error.after is not None:
            delay = error.after
        self._failures += 1
        self._outage += 1
        if self._failures >= FAILURES_BEFORE_RELIST:
            self._version = None
        self._connected(answered=False)
        self._report(error, delay)
        try:
            await self._wait(delay)
        finally:
            self._failed_at = self._clock.monotonic()

    async def _wait(self, delay: timedelta) -> None:
        self._waiting = True
        try:
            await asyncio.sleep(delay.total_seconds())
        finally:
            self._waiting = False

    def _report(self, error: Exception, delay: timedelta) -> None:
        """Log a failure: at error once per outage, and always if it is no kind of ours."""
        unknown = not isinstance(error, AgentError)
        if not unknown and self._outage != FAILURES_BEFORE_NEWS:
            log.debug("List or watch failed", resource=self._resource.plural, attempt=self._outage, error=error)
            return
        log.error(
            "List or watch failed",
            resource=self._resource.plural,
            namespace=self._namespace,
            attempt=self._outage,
            backoffSeconds=round(delay.total_seconds(), 3),
            error=error,
            exc_info=error if unknown else None,
        )
