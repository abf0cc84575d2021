"""One leader among several replicas: whoever holds a Lease, with client-go's semantics.

A leader writes the Lease every `retry_period`. If no write succeeded for `renew_deadline`, counted from the *start* of the last
one that did, leadership is lost and the process ends; nobody else takes the Lease before `lease_duration` has passed since then,
so the time in between is what the leader has to stop in. A follower takes the Lease when its holder gave it back (empty holder), or
when it has not changed for as long as it says, measured from when *we saw* it change and on the monotonic clock: clocks of two
machines are never compared. Only a holder with exactly our identity, which is ourselves before a restart, is not waited for.

Different from client-go, on purpose:

- A follower does not poll. It watches this one Lease and wakes when the Lease is given back or expires. A watch that is silent
  for any reason delays nothing: at what looks like the expiry the Lease is read.
- A Lease that is deleted while it is held counts until it would have expired, as its leader still leads.
- A leader that finds somebody else's name in the Lease, or that somebody else held it meanwhile, gives up at once.
- Leadership ends `renew_deadline` after the last good write; client-go adds one `retry_period`.

Writes are PUTs of the whole Lease as it was read, with its `resourceVersion`: gardenlet's role in the seed has no PATCH here.
Source: k8s.io/client-go/tools/leaderelection; contract core 1.3 and 2.2.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from uuid import UUID

from agents.core.clock import Clock
from agents.core.errors import FatalError
from agents.core.logging import get_logger
from agents.core.shutdown import Shutdown
from agents.kube.client import Client, ObjectList, Selector
from agents.kube.errors import ApiError, Conflict, DeadlineExceeded, NotFound, Unavailable
from agents.kube.models import LeaseSpec, format_micro_time
from agents.kube.objects import Document
from agents.kube.resource import Resource
from agents.kube.watch import EventType
from agents.runtime.reflector import Reflector
from agents.runtime.tasks import run_forever

log = get_logger(__name__)

JITTER_FACTOR = 1.2
"""Between two attempts of a follower that failed: `retry_period`, up to this much longer; also how far `renew_deadline` must be
above `retry_period`. client-go's."""

RELEASED_DURATION_SECONDS = 1
"""Duration of a Lease that nobody holds; client-go's."""

RELEASE_DEADLINE_SECONDS = 2.0
"""Giving the Lease back must fit into the time that a process has for its end."""

FAILURES_BEFORE_NEWS = 3


class LockDocument(Document):
    """A Lease, read whole."""

    spec: LeaseSpec = LeaseSpec()


LOCKS = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True, model=LockDocument)


class LeadershipLost(FatalError):
    """The Lease could not be renewed in time, or is somebody else's."""


@dataclass(frozen=True, slots=True)
class ElectionTimes:
    """How long a Lease counts, and how it is kept."""

    lease_duration: timedelta = timedelta(seconds=15)
    """How long others wait for a leader that does not renew any more; a Lease has whole seconds, so a fraction is cut off."""
    renew_deadline: timedelta = timedelta(seconds=10)
    """How long a leader that cannot renew goes on."""
    retry_period: timedelta = timedelta(seconds=2)
    """Between two renewals, and between two attempts."""

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            FatalError: not lease_duration > renew_deadline > 1.2 * retry_period > 0, in whole seconds for the first.
        """
        if not (
            timedelta(seconds=self.lease_seconds) > self.renew_deadline > JITTER_FACTOR * self.retry_period
            and self.retry_period > timedelta(0)
        ):
            raise FatalError("leader election cannot work with these times", times=str(self))

    @property
    def lease_seconds(self) -> int:
        """Return the duration as it stands in the Lease."""
        return int(self.lease_duration.total_seconds())


def new_identity(*, hostname: str, pod_uid: str, rng: Random) -> str:
    """Return who we are: the same after a restart of the container where the Pod's UID is known, else new each time."""
    return f"{hostname}_{pod_uid or UUID(int=rng.getrandbits(128), version=4)}"


class _Observed:
    """The Lease as last seen, and since when it says the same."""

    def __init__(self, clock: Clock, *, default_seconds: float) -> None:
        self._clock = clock
        self._default_seconds = default_seconds
        self.lock: LockDocument | None = None
        self.changed = asyncio.Event()
        self._record: object = None
        self._since = clock.monotonic()
        self._held_seconds: float | None = None

    def see(self, lock: LockDocument) -> None:
        """Take what was read, watched or written."""
        self.lock = lock
        if (record := lock.content.get("spec")) != self._record or self._held_seconds is None:
            self._record = record
            self._since = self._clock.monotonic()
        duration = lock.spec.lease_duration_seconds or self._default_seconds
        self._held_seconds = float(duration) if lock.spec.holder_identity else 0.0
        self.changed.set()

    def missing(self) -> None:
        """Take that there is no Lease; the one that was there counts until its end."""
        self.lock = None
        self.changed.set()

    @property
    def holder(self) -> str:
        """Return who holds the Lease as last seen, empty for nobody."""
        return "" if self.lock is None else self.lock.spec.holder_identity or ""

    @property
    def transitions(self) -> int:
        """Return how often the Lease changed hands, as last seen."""
        return 0 if self.lock is None else self.lock.spec.lease_transitions or 0

    def free_at(self) -> float:
        """Return the monotonic time at which the Lease is, or was, nobody's."""
        return self._since + (self._held_seconds or 0.0)


class LeaderElector:
    """Takes part in the election for one Lease.

    Args:
        client: API server that has the Lease.
        namespace: of the Lease.
        name: of the Lease.
        identity: who we are, see `new_identity`.
        shutdown: asked to end the process when leadership is lost.
        clock: monotonic for all waits, wall only for what is written down.
        rng: spreads attempts after a failure.
        times: how long a Lease counts.
    """

    def __init__(
        self,
        *,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        shutdown: Shutdown,
        clock: Clock,
        rng: Random,
        times: ElectionTimes | None = None,
    ) -> None:
        if not identity:
            raise FatalError("leader election needs an identity")
        self.identity = identity
        self._client = client
        self._namespace = namespace
        self._name = name
        self._shutdown = shutdown
        self._clock = clock
        self._rng = rng
        self._times = times or ElectionTimes()
        self._observed = _Observed(clock, default_seconds=self._times.lease_duration.total_seconds())
        self._leading = False
        self._maybe_ours = False
        self._taken_from: str | None = None
        self._renewed_at = 0.0
        self._retry_at = 0.0
        self._transitions = 0
        self._failures = 0

    @property
    def is_leader(self) -> bool:
        """Return whether we lead now."""
        return self._leading

    @property
    def holder(self) -> str:
        """Return who held the Lease when it was last seen, empty for nobody."""
        return self._observed.holder

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[None]:
        """Wait until we lead, keep the Lease while the block runs, and give it back after that.

        If leadership is lost, a shutdown is requested; whoever runs the block has to end it then.
        """
        try:
            await self._acquire()
            log.info("Leading", lease=self._name, identity=self.identity)
            async with asyncio.TaskGroup() as group:
                keeping = group.create_task(self._keep())
                yield
                keeping.cancel()
        finally:
            self._leading = False
            if self._maybe_ours:
                await self._release()

    # Following.

    async def _acquire(self) -> None:
        """Return once the Lease is ours; the first look needs no watch, as there is often nobody to wait for."""
        if await self._attempt(read_first=True):
            return
        reflector = Reflector(
            client=self._client,
            resource=LOCKS,
            namespace=self._namespace,
            selector=Selector(field=f"metadata.name={self._name}"),
            replace=self._listed,
            apply=self._watched,
            connected=_ignore,
            clock=self._clock,
            rng=self._rng,
        )
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(run_forever("watch of the leader's lease", reflector.run))
            await self._follow(reflector)
            watching.cancel()

    async def _follow(self, reflector: Reflector[LockDocument]) -> None:
        told = ""
        while True:
            if (holder := self._observed.holder) != told:
                told = holder
                log.info("Following", lease=self._name, leader=holder, identity=self.identity)
            ours = holder == self.identity  # an answer was lost on its way: we need not wait for ourselves
            due = self._retry_at if ours else max(self._observed.free_at(), self._retry_at)
            if await self._changed_before(due):
                continue
            seen = self._observed.lock
            if await self._attempt(read_first=False):
                return
            if seen is not None and self._observed.lock is not seen:
                reflector.reconnect()  # what was read is newer than what the watch has told

    async def _changed_before(self, due: float) -> bool:
        """Wait until the Lease is seen to change (true) or a time has come (false)."""
        self._observed.changed.clear()
        seconds = due - self._clock.monotonic()
        if seconds <= 0:
            return False
        try:
            async with asyncio.timeout(seconds):
                await self._observed.changed.wait()
        except TimeoutError:
            return self._clock.monotonic() < due
        return True

    def _listed(self, listed: ObjectList[LockDocument]) -> None:
        self._see(listed.items[0] if listed.items else None)

    def _watched(self, event_type: EventType, lock: LockDocument) -> None:
        self._see(None if event_type is EventType.DELETED else lock)

    async def _attempt(self, *, read_first: bool) -> bool:
        """Try to take the Lease; return whether it is ours now.

        What looked like the end of the Lease may be a watch that is silent. Then the write is a conflict, and what is read after
        that decides.
        """
        try:
            if read_first:
                await self._read()
            for _ in range(2):
                if self._observed.holder != self.identity and self._clock.monotonic() < self._observed.free_at():
                    self._succeeded()
                    return False
                try:
                    await self._write()
                except (Conflict, NotFound):
                    self._maybe_ours = False
                    await self._read()
                else:
                    self._leading = True
                    return True
        except ApiError as error:
            await self._failed(error)
        period = self._times.retry_period.total_seconds()
        self._retry_at = self._clock.monotonic() + period * (1 + JITTER_FACTOR * self._rng.random())
        return False

    # Leading.

    async def _keep(self) -> None:
        """Renew until that fails for too long; then ask for the end of the process, once."""
        try:
            while True:
                due = self._renewed_at + self._times.retry_period.total_seconds()
                await asyncio.sleep(max(0.0, due - self._clock.monotonic()))
                await self._renew_in_time()
        except LeadershipLost as error:
            self._leading = False
            log.error("Leadership lost", lease=self._name, error=error)
            self._shutdown.request("leadership lost", failed=True)

    async def _renew_in_time(self) -> None:
        """Try until a renewal works: every `retry_period`, more often towards the end."""
        period = self._times.retry_period.total_seconds()
        if self._left <= 0:
            raise LeadershipLost("lease was not renewed in time", leader=self._observed.holder)
        try:
            async with asyncio.timeout(self._left):
                while not await self._renew():  # noqa: ASYNC110 - what is waited for is on the other side of the network
                    await asyncio.sleep(max(period / 4, min(period, self._left / 2)))
        except TimeoutError as error:
            raise LeadershipLost("lease was not renewed in time", leader=self._observed.holder) from error

    @property
    def _left(self) -> float:
        """Return for how many seconds we lead without a further renewal."""
        return self._renewed_at + self._times.renew_deadline.total_seconds() - self._clock.monotonic()

    async def _renew(self) -> bool:
        """Write the Lease anew, again at once where that can help; return whether it worked."""
        for _ in range(2):
            try:
                await self._write()
            except (Conflict, NotFound):
                # Somebody touched it, or our last answer was lost on its way.
                try:
                    await self._read()
                except ApiError as error:
                    await self._failed(error)
                    return False
                self._check_still_ours()
            except (Unavailable, DeadlineExceeded) as error:
                await self._failed(error)
                if self._failures > 1:
                    return False
            except ApiError as error:
                await self._failed(error)
                return False
            else:
                return True
        return False

    def _check_still_ours(self) -> None:
        """Raise if somebody else leads, or led meanwhile.

        A Lease that was deleted, or whose holder was removed without anybody taking it, is still ours to write.
        """
        lock = self._observed.lock
        if lock is None or self._observed.holder == self.identity:
            return
        if self._observed.holder or self._observed.transitions != self._transitions:
            self._maybe_ours = False
            raise LeadershipLost("lease is not ours any more", leader=self._observed.holder)

    async def _release(self) -> None:
        """Give the Lease back, so that nobody has to wait for its end; nothing that goes wrong here matters for long."""
        try:
            async with asyncio.timeout(RELEASE_DEADLINE_SECONDS):
                for attempt in range(3):
                    if attempt or self._observed.holder != self.identity:
                        await self._read()
                    if self._observed.holder != self.identity and self._taken_from != self._version:
                        return
                    try:
                        await self._free()
                    except Conflict:
                        continue
                    log.info("Lease given back", lease=self._name)
                    return
        except (ApiError, TimeoutError) as error:
            log.info("Lease not given back, it has to expire", lease=self._name, error=error)

    async def _free(self) -> None:
        """Write the Lease as nobody's.

        Also one that is not ours, if we asked for it and were stopped before the answer: that request may still be carried out, as long as
        the Lease is as it was, and nobody would ever give it back.
        """
        if self._observed.lock is None:
            await self._create(self._released(None))
        else:
            await self._put(self._observed.lock, self._released(self._observed.lock))

    # Both.

    async def _read(self) -> None:
        try:
            lock = await self._client.get(LOCKS, self._name, namespace=self._namespace, deadline=self._request_deadline)
        except NotFound:
            self._see(None)
        else:
            self._see(lock)

    def _see(self, lock: LockDocument | None) -> None:
        """Take what was read or watched, None for no Lease."""
        if lock is None:
            self._observed.missing()
        else:
            self._observed.see(lock)
        if self._taken_from != self._version:
            self._taken_from = None  # what we asked for then is a conflict by now

    async def _write(self) -> None:
        """Write the Lease as ours; on success we lead, counted from now, before the request."""
        started = self._clock.monotonic()
        lock = self._observed.lock
        self._maybe_ours = True
        self._taken_from = self._version
        spec = self._held(lock)
        self._observed.see(await (self._create(spec) if lock is None else self._put(lock, spec)))
        self._taken_from = None
        self._transitions = self._observed.transitions
        self._renewed_at = started
        self._succeeded()

    @property
    def _version(self) -> str:
        """Return the resourceVersion of the Lease as last seen, empty if there is none."""
        return "" if self._observed.lock is None else self._observed.lock.metadata.resource_version

    async def _create(self, spec: Mapping[str, object]) -> LockDocument:
        document = {"metadata": {"name": self._name, "namespace": self._namespace}, "spec": spec}
        deadline = self._request_deadline
        return await self._client.create(LOCKS, document, namespace=self._namespace, deadline=deadline)

    async def _put(self, lock: LockDocument, spec: Mapping[str, object]) -> LockDocument:
        document = {**lock.content, "spec": {**lock.content.get("spec", {}), **spec}}
        deadline = self._request_deadline
        return await self._client.replace(LOCKS, self._name, document, namespace=self._namespace, deadline=deadline)

    def _held(self, lock: LockDocument | None) -> Mapping[str, object]:
        now = format_micro_time(self._clock.now())
        spec = LeaseSpec() if lock is None else lock.spec
        ours = spec.holder_identity == self.identity
        kept = lock is not None and ours and spec.acquire_time is not None
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._times.lease_seconds,
            "acquireTime": format_micro_time(spec.acquire_time) if kept and spec.acquire_time else now,
            "renewTime": now,
            "leaseTransitions": (spec.lease_transitions or 0) + (0 if ours or lock is None else 1),
        }

    def _released(self, lock: LockDocument | None) -> Mapping[str, object]:
        now = format_micro_time(self._clock.now())
        return {
            "holderIdentity": "",
            "leaseDurationSeconds": RELEASED_DURATION_SECONDS,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0 if lock is None else lock.spec.lease_transitions or 0,
        }

    @property
    def _request_deadline(self) -> float:
        """Half of the renew deadline, so that a request that hangs leaves time for another one; controller-runtime's."""
        return self._times.renew_deadline.total_seconds() / 2

    def _succeeded(self) -> None:
        if self._failures >= FAILURES_BEFORE_NEWS:
            log.info("Lease is reachable again", lease=self._name)
        self._failures = 0

    async def _failed(self, error: ApiError) -> None:
        self._failures += 1
        write = log.error if self._failures == FAILURES_BEFORE_NEWS else log.debug
        write("Lease is not reachable", lease=self._name, attempt=self._failures, error=error)
        if isinstance(error, Unavailable | DeadlineExceeded):
            await self._client.reset_connections()


def _ignore(*, answered: bool) -> None:
    """Take no notice: a follower is well while the API server is away, and its informers say so."""
