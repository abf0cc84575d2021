"""Lines of a watch become events, whatever the chunks look like."""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.kube.client import Client
from agents.kube.errors import ApiError, DeadlineExceeded, Gone, InvalidResponse, ServerError, Unavailable
from agents.kube.models import NODES, Node
from agents.kube.transport import Call
from agents.kube.watch import EventType, LineSplitter, Watch, WatchEvent
from tests.support.fake_api import FakeApi


class Chunks:
    """A body that consists of given chunks."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = list(chunks)

    async def read(self) -> bytes:
        """Return the next chunk."""
        return self.chunks.pop(0) if self.chunks else b""


def line(event_type: str, **document: object) -> bytes:
    """Return an event as the server sends it."""
    return json.dumps({"type": event_type, "object": document}).encode() + b"\n"


def watch(*chunks: bytes) -> Watch[Node]:
    """Return a watch over chunks."""
    return Watch(Chunks(*chunks), Node, Call("GET", "/api/v1/nodes"))


async def collect(*chunks: bytes) -> list[WatchEvent[Node]]:
    """Return all events of chunks."""
    return [event async for event in watch(*chunks)]


NODE = {"metadata": {"name": "a", "resourceVersion": "7"}}


async def test_changes() -> None:
    """Each kind of change has the object and its version."""
    events = await collect(line("ADDED", **NODE) + line("MODIFIED", **NODE), line("DELETED", **NODE))
    assert [event.type for event in events] == [EventType.ADDED, EventType.MODIFIED, EventType.DELETED]
    assert {event.resource_version for event in events} == {"7"}
    assert all(event.object and event.object.metadata.name == "a" for event in events)


async def test_bookmark_has_no_object() -> None:
    """A bookmark has a version only."""
    [event] = await collect(line("BOOKMARK", metadata={"resourceVersion": "9"}))
    assert (event.type, event.resource_version, event.object) == (EventType.BOOKMARK, "9", None)


@pytest.mark.parametrize(
    ("status", "expected"),
    [({"code": 410, "reason": "Expired"}, Gone), ({"code": 500}, ServerError), ({}, ServerError)],
)
async def test_error_is_raised(status: dict[str, object], expected: type[ApiError]) -> None:
    """An ERROR event is raised as what its Status says, after the events before it."""
    events = watch(line("ADDED", **NODE) + line("ERROR", kind="Status", **status))
    assert (await anext(events)).type is EventType.ADDED
    with pytest.raises(expected):
        await anext(events)


@pytest.mark.parametrize(
    "text",
    [
        b"not json\n",
        b"[]\n",
        b'{"type":"OTHER","object":{}}\n',
        b'{"object":{}}\n',
        b'{"type":"ADDED"}\n',
        b'{"type":"ADDED","obj',
    ],
)
async def test_line_that_is_no_event(text: bytes) -> None:
    """A line that is not an event is an error, and so is one without its end that the connection leaves behind."""
    if text.endswith(b"\n"):
        with pytest.raises(InvalidResponse):
            await collect(text)
    else:
        assert await collect(text) == []


async def test_empty_lines_are_no_events() -> None:
    """Empty lines between events mean nothing."""
    assert len(await collect(b"\n\r\n", line("ADDED", **NODE), b"\n")) == 1


async def test_line_above_the_limit() -> None:
    """A line without end is given up instead of filling the memory."""
    splitter = LineSplitter(limit=10)
    assert splitter.feed(b"1234567890") == []
    with pytest.raises(InvalidResponse):
        splitter.feed(b"1")


async def test_limit_is_per_line() -> None:
    """Any number of lines below the limit may come, in pieces, too."""
    splitter = LineSplitter(limit=10)
    for _ in range(5):
        assert splitter.feed(b"1234567") == []
        assert splitter.feed(b"8\n") == [b"12345678"]


async def test_line_above_the_limit_in_a_watch() -> None:
    """In a watch, too, and the error says where."""
    events = watch(b"x" * 100)
    events._lines = LineSplitter(limit=10)
    with pytest.raises(InvalidResponse) as caught:
        await anext(events)
    assert caught.value.fields["path"] == "/api/v1/nodes"


@given(lines=st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")), max_size=10), data=st.data())
def test_lines_do_not_depend_on_chunks(lines: list[bytes], data: st.DataObject) -> None:
    """However a body is cut into chunks, the same lines come out."""
    body = b"".join(item + b"\n" for item in lines)
    splitter = LineSplitter()
    seen: list[bytes] = []
    while body:
        size = data.draw(st.integers(1, len(body)))
        seen.extend(splitter.feed(body[:size]))
        body = body[size:]
    assert seen == [item for item in lines if item.strip()]


async def test_broken_and_silent_connections() -> None:
    """What the connection raises passes through."""
    api = FakeApi()
    client = Client(transport=api, rng=Random(1))
    async with client.watch(NODES, resource_version="1", read_deadline=5) as events:
        with pytest.raises(DeadlineExceeded):
            await anext(aiter(events))
        api.streams[0].fail(Unavailable("reset"))
        with pytest.raises(Unavailable):
            await anext(aiter(events))
