"""Tells people what happened to an object, best effort: an event never blocks and never fails what it is about.

One task delivers what waits; what does not fit, or cannot be delivered after some attempts, is dropped and counted. The node
agent may only create and patch events (contract 4.8), so repeats are counted here: the same event within six minutes patches the
count of the one before. Notes are plain text, never a format string (contract 9, W27), cut to 1024 bytes.

However often something fails, it costs little: repeats that have not been delivered yet are one entry with a count, a series is
patched every 10 s at most, and the 51st note of one kind about one object becomes the common one of all that follow.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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

SERIES_PATCH_SECONDS = 10.0
"""A series is patched so often at most. Sent at once, the repeats of one OSC took a third of the next one's daemon-reload."""

MOST_NOTES = 50
"""More different notes of one kind, about one object within `SERIES_SECONDS`, are combined."""

COMBINED = "(combined from similar events) "

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

    def kind(self) -> tuple[object, ...]:
        """Return what it has in common with similar ones."""
        return self.regarding, self.type, self.reason, self.action, self.reporter, self.core


@dataclass(slots=True)
class _Waiting:
    """How often an event happened that has not been delivered yet."""

    first: datetime
    last: datetime
    count: int = 1


@dataclass(slots=True)
class _Series:
    """An event that was created, and how often it happened since."""

    name: str
    last: float
    count: int


@dataclass(slots=True)
class _Notes:
    """The notes of one kind of event, and the event that stands for all further ones."""

    seen: dict[str, float] = field(default_factory=dict)
    common: _Event | None = None
    last: float = 0.0
    full_until: float = 0.0


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
        self._waiting: dict[_Event, _Waiting] = {}
        self._notes: dict[tuple[object, ...], _Notes] = {}
        self._hurry = False
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
            if not self._waiting:
                self._drained.set()
                self._filled.clear()
                await self._filled.wait()
                # What an event is about comes first: without this pause the Node's patch waited behind the events of units.
                await asyncio.sleep(_SETTLE_SECONDS)
                continue  # whoever flushes wakes us also where nothing waits
            event = min(self._waiting, key=self._due)
            if (wait := self._due(event) - self._clock.monotonic()) > 0:
                self._filled.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._filled.wait()
                continue
            await self._deliver(event, self._waiting.pop(event))

    async def flush(self, *, deadline: float) -> None:
        """Wait until what was recorded has been delivered or given up, at most so many seconds; before an own restart."""
        self._hurry = True
        self._filled.set()
        try:
            async with asyncio.timeout(deadline):
                await self._drained.wait()
        except TimeoutError:
            log.debug("Events still wait to be delivered", events=len(self._waiting))
        finally:
            self._hurry = False

    def _put(self, event: _Event) -> None:
        event, now = self._combined(event), self._clock.now()
        if (waiting := self._waiting.get(event)) is not None:
            waiting.count += 1
            waiting.last = now
            return
        if len(self._waiting) >= self._queue_length:
            self.dropped += 1
            log.debug("Event dropped, too many are waiting", reason=event.reason)
            return
        self._waiting[event] = _Waiting(now, now)
        self._drained.clear()
        self._filled.set()

    def _combined(self, event: _Event) -> _Event:
        """Return the event, or the one that stands for all of its kind where there are too many different ones."""
        now, kind = self._clock.monotonic(), event.kind()
        notes = self._notes.get(kind)
        if notes is None or now - notes.last >= SERIES_SECONDS:
            self._notes = {known: other for known, other in self._notes.items() if now - other.last < SERIES_SECONDS}
            notes = self._notes[kind] = _Notes()
        notes.last = now
        if event.note not in notes.seen and now >= notes.full_until:
            notes.seen = {note: last for note, last in notes.seen.items() if now - last < SERIES_SECONDS}
        if event.note in notes.seen or len(notes.seen) < MOST_NOTES:
            notes.seen[event.note] = now
            return event
        notes.full_until = min(notes.seen.values()) + SERIES_SECONDS
        if notes.common is None:
            notes.common = replace(event, note=cut(COMBINED + event.note))
        return notes.common

    def _due(self, event: _Event) -> float:
        series = self._series.get(event)
        return 0.0 if series is None or self._hurry else series.last + SERIES_PATCH_SECONDS

    async def _deliver(self, event: _Event, waiting: _Waiting) -> None:
        attempt = 1
        while (error := await self._attempt(event, waiting)) is not None:
            if isinstance(error, TerminalError) or attempt == _ATTEMPTS:
                self.dropped += waiting.count
                log.debug("Event not delivered", reason=event.reason, attempt=attempt, error=error)
                return
            await asyncio.sleep(_FIRST_BACKOFF_SECONDS * 2 ** (attempt - 1))
            attempt += 1

    async def _attempt(self, event: _Event, waiting: _Waiting) -> Exception | None:
        """Return why an event could not be sent, None if it was; whatever the reason, it must not end the process."""
        try:
            await self._send(event, waiting)
        except Exception as error:  # noqa: BLE001 - returned and logged; best effort
            return error
        return None

    async def _send(self, event: _Event, waiting: _Waiting) -> None:
        now = self._clock.monotonic()
        self._series = {known: series for known, series in self._series.items() if now - series.last < SERIES_SECONDS}
        series = self._series.get(event)
        if series is not None:
            try:
                await self._repeat(event, series, waiting)
            except NotFound:
                del self._series[event]
            else:
                series.count += waiting.count
                series.last = now
                return
        name = self._new_name(event.regarding.name)
        await self._create(event, name, waiting)
        self._series[event] = _Series(name, now, waiting.count)

    async def _create(self, event: _Event, name: str, waiting: _Waiting) -> None:
        namespace = _namespace(event)
        metadata = {"name": name, "namespace": namespace}
        document = self._core_document(event, waiting) if event.core else self._document(event, waiting)
        resource = CORE_EVENTS if event.core else EVENTS
        await self._client.create(resource, {"metadata": metadata, **document}, namespace=namespace)

    async def _repeat(self, event: _Event, series: _Series, waiting: _Waiting) -> None:
        document: Mapping[str, object]
        count = series.count + waiting.count
        document = {"count": count, "lastTimestamp": _seconds(waiting.last)} if event.core else _series(count, waiting)
        resource = CORE_EVENTS if event.core else EVENTS
        await self._client.patch(resource, series.name, merge(document), namespace=_namespace(event))

    def _document(self, event: _Event, waiting: _Waiting) -> Mapping[str, object]:
        return {
            "eventTime": format_micro_time(waiting.first),
            **(_series(waiting.count, waiting) if waiting.count > 1 else {}),
            "reportingController": event.reporter,
            "reportingInstance": f"{event.reporter}-{self._instance}"[:128],
            "action": event.action,
            "reason": event.reason,
            "regarding": event.regarding.document(),
            "note": event.note,
            "type": event.type,
        }

    def _core_document(self, event: _Event, waiting: _Waiting) -> Mapping[str, object]:
        return {
            "firstTimestamp": _seconds(waiting.first),
            "lastTimestamp": _seconds(waiting.last),
            "count": waiting.count,
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


def _series(count: int, waiting: _Waiting) -> Mapping[str, object]:
    return {"series": {"count": count, "lastObservedTime": format_micro_time(waiting.last)}}


def _seconds(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
