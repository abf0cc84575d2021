"""Tells people what happened to an object, best effort: an event never blocks and never fails what it is about.

Events go to a bounded queue that one task drains; what does not fit, or cannot be delivered after some attempts, is dropped and
counted. The node agent may only create and patch events (contract 4.8), so repeats are counted here: the same event within six
minutes patches the count of the one before. Notes are plain text, never a format string (contract 9, W27), cut to 1024 bytes.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from agents.core.clock import Clock
from agents.core.errors import TerminalError
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import NotFound
from agents.kube.models import CORE_EVENTS, EVENTS, format_micro_time
from agents.kube.patch import merge

log = get_logger(__name__)

MAX_NOTE_BYTES = 1024
QUEUE_LENGTH = 256
SERIES_SECONDS = 360.0
"""A repeat within this time is counted on the event before; client-go's."""

_ATTEMPTS = 5
_SETTLE_SECONDS = 0.1
_FIRST_BACKOFF_SECONDS = 1.0
_CLUSTER_SCOPED_NAMESPACE = "default"
_MAX_NAME_LENGTH = 230

EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """What an event is about."""

    kind: str
    name: str
    uid: str = ""
    namespace: str = ""
    api_version: str = "v1"

    def document(self) -> dict[str, str]:
        """Return the reference as it stands in an event."""
        pairs = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "namespace": self.namespace,
        }
        return {key: value for key, value in pairs.items() if value}


@dataclass(frozen=True, slots=True)
class _Event:
    """What happened; equal ones are repeats of one another."""

    regarding: ObjectReference
    type: EventType
    reason: str
    action: str
    note: str
    reporter: str
    core: bool


@dataclass(slots=True)
class _Series:
    """An event that was created, and how often it happened since."""

    name: str
    first: datetime
    last: float
    count: int = 1


class EventRecorder:
    """Records events of one cluster.

    Args:
        client: API server.
        instance: name of this machine; part of `reportingInstance`.
        clock: for times, and to tell repeats.
        queue_length: how many events may wait.
    """

    def __init__(self, *, client: Client, instance: str, clock: Clock, queue_length: int = QUEUE_LENGTH) -> None:
        self._client = client
        self._instance = instance
        self._clock = clock
        self._queue_length = queue_length
        self._queue: deque[tuple[_Event, datetime]] = deque()
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._series: dict[_Event, _Series] = {}
        self._numbers = 0
        self.dropped = 0
        """How many events were not delivered."""

    def event(
        self,
        regarding: ObjectReference,
        *,
        event_type: EventType,
        reason: str,
        action: str,
        note: str,
        controller: str,
    ) -> None:
        """Record an event (events.k8s.io/v1) of a controller; returns at once."""
        self._put(_Event(regarding, event_type, reason, action, cut(note), controller, core=False))

    def core_event(
        self, regarding: ObjectReference, *, event_type: EventType, reason: str, message: str, component: str
    ) -> None:
        """Record an event of the core API (v1), as `osc-checker` does; returns at once."""
        self._put(_Event(regarding, event_type, reason, "", cut(message), component, core=True))

    async def run(self) -> None:
        """Deliver events until cancelled."""
        while True:
            while not self._queue:
                self._drained.set()
                self._filled.clear()
                await self._filled.wait()
                # What an event is about comes first: without this pause the Node's patch waited behind the events of units.
                await asyncio.sleep(_SETTLE_SECONDS)
            event, moment = self._queue.popleft()
            await self._deliver(event, moment)

    async def flush(self, *, deadline: float) -> None:
        """Wait until what was recorded has been delivered or given up, at most so many seconds; before an own restart."""
        try:
            async with asyncio.timeout(deadline):
                await self._drained.wait()
        except TimeoutError:
            log.debug("Events still wait to be delivered", events=len(self._queue))

    def _put(self, event: _Event) -> None:
        if len(self._queue) >= self._queue_length:
            self.dropped += 1
            log.debug("Event dropped, too many are waiting", reason=event.reason)
            return
        self._queue.append((event, self._clock.now()))
        self._drained.clear()
        self._filled.set()

    async def _deliver(self, event: _Event, moment: datetime) -> None:
        attempt = 1
        while (error := await self._attempt(event, moment)) is not None:
            if isinstance(error, TerminalError) or attempt == _ATTEMPTS:
                self.dropped += 1
                log.debug("Event not delivered", reason=event.reason, attempt=attempt, error=error)
                return
            await asyncio.sleep(_FIRST_BACKOFF_SECONDS * 2 ** (attempt - 1))
            attempt += 1

    async def _attempt(self, event: _Event, moment: datetime) -> Exception | None:
        """Return why an event could not be sent, None if it was; whatever the reason, it must not end the process."""
        try:
            await self._send(event, moment)
        except Exception as error:  # noqa: BLE001 - returned and logged; best effort
            return error
        return None

    async def _send(self, event: _Event, moment: datetime) -> None:
        now = self._clock.monotonic()
        self._series = {known: series for known, series in self._series.items() if now - series.last < SERIES_SECONDS}
        series = self._series.get(event)
        if series is not None:
            try:
                await self._repeat(event, series, moment)
            except NotFound:
                del self._series[event]
            else:
                series.count += 1
                series.last = now
                return
        name = self._new_name(event.regarding.name)
        await self._create(event, name, moment)
        self._series[event] = _Series(name, moment, now)

    async def _create(self, event: _Event, name: str, moment: datetime) -> None:
        namespace = _namespace(event)
        metadata = {"name": name, "namespace": namespace}
        document = self._core_document(event, moment) if event.core else self._document(event, moment)
        resource = CORE_EVENTS if event.core else EVENTS
        await self._client.create(resource, {"metadata": metadata, **document}, namespace=namespace)

    async def _repeat(self, event: _Event, series: _Series, moment: datetime) -> None:
        document: dict[str, object]
        if event.core:
            document = {"count": series.count + 1, "lastTimestamp": _seconds(moment)}
        else:
            document = {"series": {"count": series.count + 1, "lastObservedTime": format_micro_time(moment)}}
        resource = CORE_EVENTS if event.core else EVENTS
        await self._client.patch(resource, series.name, merge(document), namespace=_namespace(event))

    def _document(self, event: _Event, moment: datetime) -> Mapping[str, object]:
        return {
            "eventTime": format_micro_time(moment),
            "reportingController": event.reporter,
            "reportingInstance": f"{event.reporter}-{self._instance}"[:128],
            "action": event.action,
            "reason": event.reason,
            "regarding": event.regarding.document(),
            "note": event.note,
            "type": event.type,
        }

    def _core_document(self, event: _Event, moment: datetime) -> Mapping[str, object]:
        return {
            "firstTimestamp": _seconds(moment),
            "lastTimestamp": _seconds(moment),
            "count": 1,
            "source": {"component": event.reporter, "host": self._instance},
            "reason": event.reason,
            "involvedObject": event.regarding.document(),
            "message": event.note,
            "type": event.type,
        }

    def _new_name(self, regarding: str) -> str:
        """Return a name as client-go makes them: the object's name and the time, here with a number, in hex."""
        self._numbers += 1
        nanoseconds = int(self._clock.now().timestamp() * 1_000_000) * 1000 + self._numbers % 1000
        return f"{regarding[:_MAX_NAME_LENGTH]}.{nanoseconds:x}"


def cut(note: str) -> str:
    """Return a text of at most 1024 bytes, cut between characters."""
    return note.encode()[:MAX_NOTE_BYTES].decode(errors="ignore")


def _namespace(event: _Event) -> str:
    return event.regarding.namespace or _CLUSTER_SCOPED_NAMESPACE


def _seconds(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
