"""An API server in memory, as the transport of a client: objects, versions, watches, and faults on demand.

Knows what the tests need of the real one: create, read, list with selectors, PUT with a resource version, merge patches,
strategic merge patches of lists by type, delete, watch with bookmarks, 404, 409 and 410. `tests/integration/agents/kube/test_fake_api.py` plays one scenario on this and
on a real kube-apiserver and compares.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from email.utils import format_datetime
from typing import Any

from agents.core.clock import Clock
from agents.kube.errors import (
    ApiError,
    DeadlineExceeded,
    Forbidden,
    NotFound,
    Unauthorized,
    Unavailable,
    from_response,
)
from agents.kube.kubeconfig import ClusterAccess
from agents.kube.resource import Resource
from agents.kube.transport import ByteStream, Call, DateObserver

Document = dict[str, Any]
Fault = Callable[[Call], ApiError | None]


@dataclass(slots=True)
class _Key:
    collection: str
    namespace: str
    name: str
    subresource: str


@dataclass(slots=True)
class FakeStream:
    """The body of one watch."""

    call: Call
    read_deadline: float
    ends_at: float
    matches: Callable[[str, Document], bool]
    chunks: list[bytes] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    failure: ApiError | None = None
    ended: bool = False
    silent: bool = False

    def send(self, event_type: str, document: Document) -> None:
        """Give the client an event."""
        self.send_raw(json.dumps({"type": event_type, "object": document}).encode() + b"\n")

    def send_raw(self, chunk: bytes) -> None:
        """Give the client some bytes."""
        if not (self.silent or self.ended or self.failure):
            self.chunks.append(chunk)
            self.changed.set()

    def end(self) -> None:
        """End the watch in order."""
        self.ended = True
        self.changed.set()

    def fail(self, error: ApiError) -> None:
        """Break the connection."""
        self.failure = error
        self.changed.set()

    async def read(self) -> bytes:
        """Return the next bytes, as the real stream does."""
        loop = asyncio.get_running_loop()
        silent_at = loop.time() + self.read_deadline
        while True:
            if self.failure is not None:
                raise self.failure
            if self.chunks:
                return self.chunks.pop(0)
            if self.ended or (loop.time() >= self.ends_at and not self.silent):
                return b""
            if loop.time() >= silent_at:
                raise DeadlineExceeded("no answer in time", path=self.call.path)
            self.changed.clear()
            try:
                async with asyncio.timeout_at(min(silent_at, self.ends_at if not self.silent else silent_at)):
                    await self.changed.wait()
            except TimeoutError:
                continue


class FakeApi:
    """The API server; give it to `Client(transport=...)`."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.streams: list[FakeStream] = []
        self.resets = 0
        self.closed = False
        self.latency = 0.0
        self.slow_path = ""
        self.connect_latency = 0.0
        self._is_connected = False
        self._objects: dict[tuple[str, str, str], Document] = {}
        self._history: list[tuple[int, str, str, Document]] = []
        self._version = 1
        self._oldest = 0
        self._faults: list[Fault] = []
        self.certificate = b""
        """What the client shows; tests that care say what it is before the first switch."""
        self.refused: set[bytes] = set()
        """Certificates with which nothing is answered but a refusal."""
        self._raw: dict[str, bytes] = {"/version": b"{}"}
        self._replies: dict[str, Callable[[Document], Document]] = {}
        self.switches: list[ClusterAccess] = []
        self._date: tuple[DateObserver, Clock] | None = None

    # What a test does to the server.

    def put(self, resource: Resource[Any], document: Mapping[str, Any]) -> Document:
        """Create or replace an object."""
        metadata = document["metadata"]
        collection = resource.collection()
        key = (collection, metadata.get("namespace", ""), metadata["name"])
        return self._write(key, {"apiVersion": resource.api_version, "kind": resource.kind, **document})

    def remove(self, resource: Resource[Any], name: str, namespace: str = "") -> None:
        """Delete an object."""
        self._delete((resource.collection(), namespace, name))

    def read(self, resource: Resource[Any], name: str, namespace: str = "") -> Document | None:
        """Return an object as it is stored."""
        return self._objects.get((resource.collection(), namespace, name))

    def stored(self, resource: Resource[Any]) -> list[Document]:
        """Return all objects of a kind."""
        return [document for key, document in self._objects.items() if key[0] == resource.collection()]

    def serve(self, path: str, body: bytes) -> None:
        """Answer a GET of this path with these bytes."""
        self._raw[path] = body

    def answer(self, path: str, reply: Callable[[Document], Document]) -> None:
        """Answer each POST to this path, of a review or a subresource, with what a function makes of it; nothing is stored."""
        self._replies[path] = reply

    def fail(self, error: ApiError, *, times: int | None = None, method: str | None = None, path: str = "") -> Fault:
        """Answer matching requests with an error: so many times, or until `heal`."""
        left = times

        def fault(call: Call) -> ApiError | None:
            nonlocal left
            if (method is not None and call.method != method) or not call.path.startswith(path) or left == 0:
                return None
            left = None if left is None else left - 1
            return error

        self._faults.append(fault)
        return fault

    def go_away(self) -> None:
        """Break all watches and refuse all requests until `heal`."""
        self.fail(Unavailable("connection failed"))
        for stream in self.streams:
            stream.fail(Unavailable("connection failed"))

    def heal(self) -> None:
        """End all faults."""
        self._faults.clear()

    def compact(self) -> None:
        """Forget the history: watches from an earlier version get a 410."""
        self._version += 1
        self._oldest = self._version
        self._history.clear()

    def forget(self, *, history: int = 1000, events: int = 50) -> None:
        """Drop what only tests look at and the oldest of the rest, so that a long run does not grow for the server's sake."""
        self.calls.clear()
        if len(self._history) > history:
            del self._history[:-history]
            self._oldest = self._history[0][0]
        reports = [key for key in self._objects if key[0].endswith("/events")]
        for key in reports[:-events]:
            del self._objects[key]

    def bookmark(self) -> None:
        """Send a bookmark on each watch."""
        self._version += 1
        for stream in self.streams:
            stream.send("BOOKMARK", {"metadata": {"resourceVersion": str(self._version)}})

    def tell_time(self, date: DateObserver, clock: Clock) -> None:
        """Have a `Date` in each answer from now on, by a clock of the server's own."""
        self._date = (date, clock)

    def requests(self, method: str, *, watch: bool = False) -> list[Call]:
        """Return the requests of a method, either watches or others."""
        return [call for call in self.calls if call.method == method and (("watch", "true") in call.query) is watch]

    # What the client sees: the transport.

    async def request(self, call: Call, *, deadline: float = 30.0, connect_deadline: float = 3.0) -> bytes:
        """Answer a request."""
        self.calls.append(call)
        await self._delay(call, deadline)
        self._raise_fault(call)
        if call.path in self._raw:
            return self._raw[call.path]
        body = json.loads(call.body) if call.body else {}
        if call.method == "POST" and call.path in self._replies:
            return json.dumps(self._replies[call.path](body)).encode()
        key = _parse(call.path)
        if call.method == "GET" and not key.name:
            return self._list(call, key)
        answer = {
            "GET": self._get,
            "POST": self._create,
            "PUT": self._replace,
            "PATCH": self._patch,
            "DELETE": self._remove,
        }
        return json.dumps(answer[call.method](call, key, body)).encode()

    @asynccontextmanager
    async def stream(self, call: Call, *, read_deadline: float, deadline: float = 30.0) -> AsyncIterator[ByteStream]:
        """Open a watch."""
        self.calls.append(call)
        await self._delay(call, deadline)
        self._raise_fault(call)
        key, query = _parse(call.path), dict(call.query)
        stream = FakeStream(
            call,
            read_deadline,
            asyncio.get_running_loop().time() + int(query["timeoutSeconds"]),
            lambda collection, document: collection == key.collection and _selected(document, key.namespace, query),
        )
        since = int(query["resourceVersion"])
        if since < self._oldest:
            stream.send("ERROR", json.loads(_status(410, "Expired", "too old resource version")))
            stream.end()
        for version, event_type, collection, document in self._history:
            if version > since and stream.matches(collection, document):
                stream.send(event_type, document)
        self.streams.append(stream)
        try:
            yield stream
        finally:
            self.streams.remove(stream)

    async def reset_connections(self) -> None:
        """Count it."""
        self.resets += 1
        self._is_connected = False

    async def switch(self, access: ClusterAccess, *, proof: Call, keep: Callable[[], Awaitable[None]]) -> None:
        """Take other credentials if the proof is answered."""
        before, self.certificate = self.certificate, access.credentials.client_certificate
        try:
            with suppress(Forbidden, NotFound):
                await self.request(proof)
            await keep()
        except BaseException:
            self.certificate = before
            raise
        self.switches.append(access)

    async def close(self) -> None:
        """Remember it."""
        self.closed = True

    async def _delay(self, call: Call, deadline: float) -> None:
        latency = self.latency if call.path.startswith(self.slow_path) else 0.0
        if not self._is_connected:
            await asyncio.sleep(self.connect_latency)
            self._is_connected = True
        sent = asyncio.get_running_loop().time()
        await asyncio.sleep(min(latency, deadline))
        if latency >= deadline:
            raise DeadlineExceeded("no answer in time", path=call.path)
        if self._date is not None:
            date, clock = self._date
            date(format_datetime(clock.now(), usegmt=True), sent=sent)

    def _raise_fault(self, call: Call) -> None:
        if self.certificate in self.refused:
            raise Unauthorized("certificate is refused")
        for fault in self._faults:
            if (error := fault(call)) is not None:
                raise error.with_traceback(None)  # it is raised again and again

    def _list(self, call: Call, key: _Key) -> bytes:
        query = dict(call.query)
        items = [
            document
            for (collection, _, _), document in self._objects.items()
            if collection == key.collection and _selected(document, key.namespace, query)
        ]
        metadata = {"resourceVersion": str(self._version)}
        if "limit" in query:
            items, metadata = self._page(call, items, query)
        return json.dumps({"metadata": metadata, "items": items}).encode()

    def _page(
        self, call: Call, items: list[Document], query: Mapping[str, str]
    ) -> tuple[list[Document], dict[str, str]]:
        """Return some objects in the order of their keys; where to go on is the version and the last key."""
        version, _, last = query.get("continue", f"{self._version}:").partition(":")
        if int(version) < self._oldest:
            raise _error(call, 410, "Expired")
        left = sorted((_place(item), item) for item in items if _place(item) > last)
        chosen = left[: int(query["limit"])]
        more = {"continue": f"{version}:{chosen[-1][0]}"} if len(left) > len(chosen) else {}
        return [item for _, item in chosen], {"resourceVersion": version, **more}

    def _get(self, call: Call, key: _Key, _body: Document) -> Document:
        return self._existing(call, key)

    def _create(self, call: Call, key: _Key, body: Document) -> Document:
        name = body["metadata"]["name"]
        if (key.collection, key.namespace, name) in self._objects:
            raise _error(call, 409, "AlreadyExists")
        if key.namespace:
            body["metadata"].setdefault("namespace", key.namespace)
        return self._write((key.collection, key.namespace, name), body)

    def _replace(self, call: Call, key: _Key, body: Document) -> Document:
        current = self._existing(call, key)
        if (
            body["metadata"].get("resourceVersion", current["metadata"]["resourceVersion"])
            != current["metadata"]["resourceVersion"]
        ):
            raise _error(call, 409, "Conflict")
        return self._write((key.collection, key.namespace, key.name), body)

    def _patch(self, call: Call, key: _Key, body: Document) -> Document:
        current = self._existing(call, key)
        version = current["metadata"]["resourceVersion"]
        if body.get("metadata", {}).get("resourceVersion", version) != version:
            raise _error(call, 409, "Conflict")
        if key.subresource == "status":
            body = {"status": body.get("status")} if "status" in body else {}
        merged = _merged(current, body, by_type="strategic" in call.content_type)
        return self._write((key.collection, key.namespace, key.name), merged)

    def _remove(self, call: Call, key: _Key, body: Document) -> Document:
        current = self._existing(call, key)
        if any(current["metadata"][key] != value for key, value in body.get("preconditions", {}).items()):
            raise _error(call, 409, "Conflict")
        self._delete((key.collection, key.namespace, key.name))
        return current

    def _existing(self, call: Call, key: _Key) -> Document:
        document = self._objects.get((key.collection, key.namespace, key.name))
        if document is None:
            raise _error(call, 404, "NotFound")
        return document

    def _write(self, key: tuple[str, str, str], document: Document) -> Document:
        self._version += 1
        old = self._objects.get(key)
        uid = old["metadata"]["uid"] if old else f"uid-{self._version}"
        metadata = {**document["metadata"], "uid": uid, "resourceVersion": str(self._version)}
        stored = {**document, "metadata": metadata}
        self._objects[key] = stored
        self._publish("MODIFIED" if old else "ADDED", key[0], stored)
        return stored

    def _delete(self, key: tuple[str, str, str]) -> None:
        document = self._objects.pop(key)
        self._version += 1
        metadata = {**document["metadata"], "resourceVersion": str(self._version)}
        self._publish("DELETED", key[0], {**document, "metadata": metadata})

    def _publish(self, event_type: str, collection: str, document: Document) -> None:
        self._history.append((self._version, event_type, collection, document))
        for stream in self.streams:
            if stream.matches(collection, document):
                stream.send(event_type, document)


def _parse(path: str) -> _Key:
    parts = path.strip("/").split("/")
    root, rest = (parts[:2], parts[2:]) if parts[0] == "api" else (parts[:3], parts[3:])
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    rest = [*rest, "", ""]
    return _Key("/" + "/".join([*root, rest[0]]), namespace, rest[1], rest[2])


def _place(document: Document) -> str:
    return f"{document['metadata'].get('namespace', '')}/{document['metadata']['name']}"


def _selected(document: Document, namespace: str, query: Mapping[str, str]) -> bool:
    metadata = document["metadata"]
    if namespace and metadata.get("namespace", "") != namespace:
        return False
    labels = dict(pair.split("=", 1) for pair in query.get("labelSelector", "").split(",") if pair)
    if any(metadata.get("labels", {}).get(key) != value for key, value in labels.items()):
        return False
    fields = dict(pair.split("=", 1) for pair in query.get("fieldSelector", "").split(",") if pair)
    return bool(fields.get("metadata.name", metadata["name"]) == metadata["name"])


def _merged(old: Document, patch: Document, *, by_type: bool) -> Document:
    result = dict(old)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = _merged(before if isinstance(before, dict) else {}, value, by_type=by_type)
        elif by_type and isinstance(value, list) and {"$patch": "replace"} in value:
            result[key] = [item for item in value if "$patch" not in item]
        elif by_type and isinstance(value, list) and all(isinstance(item, dict) and "type" in item for item in value):
            known = {item["type"]: item for item in result.get(key, [])}
            result[key] = list({**known, **{item["type"]: item for item in value}}.values())
        else:
            result[key] = value
    return result


def _status(code: int, reason: str, message: str) -> bytes:
    document = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return json.dumps(document).encode()


def _error(call: Call, code: int, reason: str) -> ApiError:
    return from_response(code, _status(code, reason, reason), method=call.method, path=call.path)
