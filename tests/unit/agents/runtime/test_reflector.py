"""A reflector keeps up with the API server whatever happens to the connection, and never spins."""

import asyncio
from datetime import timedelta
from random import Random

import pytest
import structlog

from agents.core.errors import FatalError
from agents.kube.client import Client, ObjectList, Selector
from agents.kube.errors import (
    ApiError,
    DeadlineExceeded,
    Forbidden,
    InvalidResponse,
    NotFound,
    ServerError,
    TooManyRequests,
    Unavailable,
)
from agents.kube.models import NODES, Node
from agents.kube.watch import EventType
from agents.runtime.reflector import Reflector
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.support.tasks import running, settle


class Sink:
    """What a reflector reports, in short form."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.answers: list[bool] = []
        self.failure: Exception | None = None

    def replace(self, listed: ObjectList[Node]) -> None:
        """Note a list."""
        self.seen.append("list:" + ",".join(sorted(item.metadata.name for item in listed.items)))

    def apply(self, event_type: EventType, item: Node) -> None:
        """Note an event."""
        if self.failure is not None:
            raise self.failure
        self.seen.append(f"{event_type}:{item.metadata.name}")

    def connected(self, *, answered: bool) -> None:
        """Note an answer."""
        self.answers.append(answered)


@pytest.fixture
def sink() -> Sink:
    """Collects what is reported."""
    return Sink()


@pytest.fixture
def reflector(client: Client, clock: FakeClock, sink: Sink) -> Reflector[Node]:
    """A reflector of all nodes."""
    return new_reflector(client, clock, sink)


def new_reflector(client: Client, clock: FakeClock, sink: Sink, *, optional: bool = False) -> Reflector[Node]:
    """Make a reflector of all nodes."""
    return Reflector(
        client=client,
        resource=NODES,
        namespace=None,
        selector=Selector(),
        replace=sink.replace,
        apply=sink.apply,
        connected=sink.connected,
        clock=clock,
        rng=Random(1),
        optional=optional,
    )


def put(api: FakeApi, name: str, **labels: str) -> None:
    """Create or replace a node."""
    api.put(NODES, {"metadata": {"name": name, "labels": labels}})


async def test_lists_then_watches(api: FakeApi, reflector: Reflector[Node], sink: Sink) -> None:
    """What is there comes as a list, what changes after that as events."""
    put(api, "a")
    async with running(reflector.run):
        await settle()
        put(api, "b")
        api.remove(NODES, "a")
        await settle()
    assert sink.seen == ["list:a", "ADDED:b", "DELETED:a"]


async def test_watch_asks_for_bookmarks_and_a_random_end(api: FakeApi, reflector: Reflector[Node]) -> None:
    """A watch continues from the list's version, asks for bookmarks, and for an end after 5 to 10 minutes."""
    put(api, "a")
    async with running(reflector.run):
        await asyncio.sleep(3600)
    watches = [dict(call.query) for call in api.requests("GET", watch=True)]
    assert watches[0]["resourceVersion"] == "2"
    assert {query["allowWatchBookmarks"] for query in watches} == {"true"}
    lengths = [int(query["timeoutSeconds"]) for query in watches]
    assert all(300 <= length <= 600 for length in lengths)
    assert len(set(lengths)) > 1


async def test_ended_watch_is_resumed_without_a_list(api: FakeApi, reflector: Reflector[Node], sink: Sink) -> None:
    """A watch that the server ends is continued from the last version seen; nothing is listed again."""
    async with running(reflector.run):
        await settle()
        put(api, "a")
        await settle()
        for stream in api.streams:
            stream.end()
        put(api, "b")
        await settle()
    assert sink.seen == ["list:", "ADDED:a", "ADDED:b"]
    assert len(api.requests("GET")) == 1
    assert dict(api.requests("GET", watch=True)[-1].query)["resourceVersion"] == "2"


async def test_bookmark_moves_the_version(api: FakeApi, reflector: Reflector[Node], sink: Sink) -> None:
    """After a bookmark the watch is continued from the bookmark's version, and nobody is told of it."""
    async with running(reflector.run):
        await settle()
        api.bookmark()
        await settle()
        for stream in api.streams:
            stream.end()
        await settle()
    assert dict(api.requests("GET", watch=True)[-1].query)["resourceVersion"] == "2"
    assert sink.seen == ["list:"]


async def test_event_without_a_version_changes_none(api: FakeApi, reflector: Reflector[Node]) -> None:
    """An event that brings no version leaves the last one, so that the watch can be continued."""
    async with running(reflector.run):
        await settle()
        for stream in api.streams:
            stream.send("BOOKMARK", {"metadata": {}})
            stream.end()
        await settle()
    assert dict(api.requests("GET", watch=True)[-1].query)["resourceVersion"] == "1"


async def test_broken_watch_is_resumed_after_a_wait(api: FakeApi, reflector: Reflector[Node], sink: Sink) -> None:
    """A connection that breaks is replaced after 0.8 to 1.6 s, from the last version; no event is lost."""
    async with running(reflector.run):
        await settle()
        for stream in api.streams:
            stream.fail(Unavailable("reset"))
        put(api, "a")
        await asyncio.sleep(0.79)
        assert sink.seen == ["list:"]
        await asyncio.sleep(0.82)
    assert sink.seen == ["list:", "ADDED:a"]
    assert sink.answers == [True, True, False, True]


async def test_gone_lists_again(api: FakeApi, reflector: Reflector[Node], sink: Sink) -> None:
    """A 410 during a watch makes the reflector list again at once."""
    async with running(reflector.run):
        await settle()
        for stream in api.streams:
            stream.fail(Unavailable("reset"))
        put(api, "a")
        api.compact()
        await asyncio.sleep(1.61)
    assert sink.seen == ["list:", "list:a"]


async def test_gone_on_each_list_backs_off(api: FakeApi, reflector: Reflector[Node]) -> None:
    """A server that answers lists with 410 is not asked in a hot loop."""
    put(api, "a")
    api.serve("/api/v1/nodes", b'{"metadata":{"resourceVersion":"5"},"items":[]}')
    api.compact()
    api.compact()
    api.compact()
    api.compact()
    api.compact()
    api.compact()
    async with running(reflector.run):
        await asyncio.sleep(60)
    assert 3 < len(api.calls) < 30


async def test_silent_watch_is_replaced(api: FakeApi, reflector: Reflector[Node], sink: Sink) -> None:
    """A half-open connection, on which nothing comes any more, is given up after 150 s and replaced."""
    async with running(reflector.run):
        await settle()
        for stream in api.streams:
            stream.silent = True
        put(api, "a")
        await asyncio.sleep(149)
        assert sink.seen == ["list:"]
        await asyncio.sleep(4)
    assert sink.seen == ["list:", "ADDED:a"]


@pytest.mark.parametrize(
    "error",
    [
        Forbidden("no", status=403),
        ServerError("broken", status=500),
        InvalidResponse("not json"),
        ValueError("a bug of ours"),
    ],
)
async def test_failing_list_is_retried_for_ever_and_slowly(
    api: FakeApi, reflector: Reflector[Node], sink: Sink, error: Exception
) -> None:
    """Contract 1.5: whatever a list fails with, 403 included, it must be tried again, with waits that grow to 30 to 60 s."""
    api.fail(error)  # type: ignore[arg-type]
    with structlog.testing.capture_logs() as logs:
        async with running(reflector.run):
            await asyncio.sleep(600)
            assert 12 <= len(api.calls) <= 24
            api.heal()
            await asyncio.sleep(61)
            assert sink.seen == ["list:"]
    assert sink.answers[0] is False
    assert logs[0]["error"] is error


@pytest.mark.parametrize("error", [Unavailable("away"), DeadlineExceeded("no answer")])
async def test_a_server_that_does_not_answer_is_found_within_5_s_of_its_return(
    api: FakeApi, reflector: Reflector[Node], sink: Sink, error: ApiError
) -> None:
    """Contract 7.1, OURS: an agent that was restarted in an outage has no Node to renew a Lease for before it has listed."""
    api.fail(error)
    async with running(reflector.run):
        await asyncio.sleep(600)
        assert 120 <= len(api.calls) <= 250
        api.heal()
        await asyncio.sleep(5)
        assert sink.seen == ["list:"]


async def test_who_waits_is_told_that_others_are_answered(api: FakeApi, reflector: Reflector[Node], sink: Sink) -> None:
    """A back-off ends at once when it is asked to; a watch that is well is left alone, and so is one that runs."""
    api.fail(ServerError("broken", status=500))
    async with running(reflector.run):
        await asyncio.sleep(300)
        api.heal()
        reflector.retry()
        await settle()
        assert sink.seen == ["list:"]
        (stream,) = api.streams
        reflector.retry()
        await settle()
        assert api.streams == [stream]


async def test_server_that_asks_to_wait_is_obeyed(api: FakeApi, reflector: Reflector[Node], sink: Sink) -> None:
    """After a 429 with Retry-After the next attempt comes after exactly that time."""
    api.fail(TooManyRequests("slow down", status=429, after=timedelta(seconds=100)), times=1)
    async with running(reflector.run):
        await asyncio.sleep(99.9)
        assert len(api.calls) == 1
        await asyncio.sleep(0.2)
    assert sink.seen == ["list:"]


async def test_watch_that_ends_at_once_backs_off(api: FakeApi, reflector: Reflector[Node]) -> None:
    """A server, or a proxy, that ends every watch at once is not asked in a hot loop."""
    async with running(reflector.run):
        for _ in range(600):
            for stream in api.streams:
                stream.end()
            await asyncio.sleep(0.1)
    assert len(api.calls) < 15


async def test_third_failure_lists_again(api: FakeApi, reflector: Reflector[Node], sink: Sink) -> None:
    """After three failures in a row the version is not trusted any more: an etcd restored from a backup has lower ones."""
    put(api, "old")
    async with running(reflector.run):
        await settle()
        api.go_away()
        await asyncio.sleep(8)
        api.heal()
        await asyncio.sleep(30)
    assert sink.seen == ["list:old", "list:old"]


async def test_backoff_starts_over_after_two_quiet_minutes(api: FakeApi, reflector: Reflector[Node]) -> None:
    """After 2 minutes without a failure the next one waits as short as the first."""
    async with running(reflector.run):
        await settle()
        api.go_away()
        await asyncio.sleep(300)
        api.heal()
        await asyncio.sleep(140)
        calls = len(api.calls)
        for stream in api.streams:
            stream.fail(Unavailable("reset"))
        await asyncio.sleep(1.61)
        assert len(api.calls) == calls + 1


async def test_event_starts_the_backoff_over(api: FakeApi, reflector: Reflector[Node]) -> None:
    """After a long outage one event is enough for the next failure to wait as short as the first."""
    async with running(reflector.run):
        await settle()
        api.go_away()
        await asyncio.sleep(300)
        api.heal()
        await asyncio.sleep(61)
        put(api, "a")
        await settle()
        calls = len(api.calls)
        for stream in api.streams:
            stream.fail(Unavailable("reset"))
        await asyncio.sleep(1.61)
        assert len(api.calls) == calls + 1


async def test_select_lists_at_once(api: FakeApi, reflector: Reflector[Node], sink: Sink) -> None:
    """Another selection ends the watch, lists at once, and watches what is selected now."""
    put(api, "a", color="red")
    put(api, "b", color="blue")
    async with running(reflector.run):
        await settle()
        reflector.select(Selector(label="color=red"))
        reflector.select(Selector(field="metadata.name=b"))
        await settle()
        put(api, "a", color="green")
        put(api, "b", color="green")
        await settle()
    assert sink.seen == ["list:a,b", "list:b", "MODIFIED:b"]
    assert reflector.selector == Selector(field="metadata.name=b")


async def test_select_interrupts_a_backoff(api: FakeApi, reflector: Reflector[Node], sink: Sink) -> None:
    """Another selection does not wait until the back-off of the former one is over."""
    api.fail(Forbidden("no", status=403))
    async with running(reflector.run):
        await asyncio.sleep(600)
        api.heal()
        reflector.select(Selector(field="metadata.name=a"))
        await settle()
        assert sink.seen == ["list:"]


async def test_select_while_a_list_is_on_its_way(api: FakeApi, reflector: Reflector[Node], sink: Sink) -> None:
    """The answer to a list of the former selection is dropped."""
    put(api, "a")
    api.latency = 5.0
    async with running(reflector.run):
        await asyncio.sleep(5)
        reflector.select(Selector(field="metadata.name=b"))
        await asyncio.sleep(20)
    assert sink.seen == ["list:"]


async def test_select_before_the_start(api: FakeApi, reflector: Reflector[Node]) -> None:
    """A selection that is made before the reflector runs is the one that it lists."""
    reflector.select(Selector(label="x=y"))
    async with running(reflector.run):
        await settle()
    assert api.calls[0].query == (("labelSelector", "x=y"),)


async def test_outage_is_told_once(api: FakeApi, reflector: Reflector[Node]) -> None:
    """A long outage gives one line at level error and, when it is over, one at info; a short interruption gives none."""
    with structlog.testing.capture_logs() as logs:
        async with running(reflector.run):
            await settle()
            for stream in api.streams:
                stream.fail(Unavailable("reset"))
            await asyncio.sleep(200)
            assert {line["log_level"] for line in logs} == {"debug"}
            api.go_away()
            await asyncio.sleep(600)
            api.heal()
            await asyncio.sleep(120)
    assert [line["event"] for line in logs if line["log_level"] != "debug"] == [
        "List or watch failed",
        "List and watch work again",
    ]


async def test_fatal_error_is_passed_on(api: FakeApi, reflector: Reflector[Node], sink: Sink) -> None:
    """Only a fatal error of a subscriber ends a reflector."""
    sink.failure = FatalError("broken")

    async def play() -> None:
        """Run a controller for some virtual seconds."""
        async with running(reflector.run):
            await settle()
            put(api, "a")
            await asyncio.sleep(10)

    with pytest.raises(ExceptionGroup) as caught:
        await play()
    assert caught.group_contains(FatalError)


@pytest.mark.parametrize("optional", [True, False])
async def test_kind_that_is_not_served(
    api: FakeApi, client: Client, clock: FakeClock, sink: Sink, *, optional: bool
) -> None:
    """Of an optional kind there are no objects, and that is a good answer; any other is waited for. It may come later."""
    missing = NotFound("the server could not find the requested resource", status=404)
    api.fail(missing, path="/api/v1/nodes")
    put(api, "a")
    async with running(new_reflector(client, clock, sink, optional=optional).run):
        await asyncio.sleep(600)
        assert sink.seen == (["list:"] * len(sink.seen) if optional else [])
        assert set(sink.answers) == {optional}
        assert len(api.requests("GET")) in (range(10, 21) if optional else range(10, 30))
        api.heal()
        await asyncio.sleep(60)
        assert sink.seen[-1] == "list:a"


async def test_optional_kind_that_goes_and_comes(api: FakeApi, client: Client, clock: FakeClock, sink: Sink) -> None:
    """With the kind its objects go, and with it they come again."""
    put(api, "a")
    async with running(new_reflector(client, clock, sink, optional=True).run):
        await settle()
        api.fail(NotFound("gone", status=404), path="/api/v1/nodes")
        for stream in api.streams:
            stream.end()
        await asyncio.sleep(5)
        assert sink.seen == ["list:a", "list:"]
        api.heal()
        await asyncio.sleep(60)
    assert sink.seen[2:] == ["list:a"]
