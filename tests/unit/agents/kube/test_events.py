"""Events are told best effort: they never block, never fail, and count repeats."""

import asyncio
from random import Random

import pytest

from agents.kube.client import Client
from agents.kube.errors import BadRequest, Forbidden, Unavailable
from agents.kube.events import EventRecorder, ObjectReference, cut
from agents.kube.models import CORE_EVENTS, EVENTS
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.support.tasks import running

NODE = ObjectReference(kind="Node", name="worker-1", uid="u-1")


@pytest.fixture
def api() -> FakeApi:
    """An empty API server in memory."""
    return FakeApi()


@pytest.fixture
def recorder(api: FakeApi, clock: FakeClock) -> EventRecorder:
    """A recorder that is not running."""
    return EventRecorder(client=Client(transport=api, rng=Random(1)), instance="host-1", clock=clock, queue_length=5)


def tell(recorder: EventRecorder, note: str = "done", reason: str = "OSCApplied") -> None:
    """Record an event."""
    recorder.event(
        NODE, event_type="Normal", reason=reason, action="Reconcile", note=note, controller="operatingsystemconfig"
    )


async def test_event_document(api: FakeApi, recorder: EventRecorder) -> None:
    """Contract 6.8: an events.k8s.io/v1 event about the Node must be created in namespace `default`."""
    async with running(recorder.run):
        tell(recorder)
        await asyncio.sleep(1)
    [event] = api.stored(EVENTS)
    metadata = event.pop("metadata")
    assert metadata["namespace"] == "default"
    assert metadata["name"].startswith("worker-1.")
    assert event == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "operatingsystemconfig",
        "reportingInstance": "operatingsystemconfig-host-1",
        "action": "Reconcile",
        "reason": "OSCApplied",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "worker-1", "uid": "u-1"},
        "note": "done",
        "type": "Normal",
    }


async def test_core_event_document(api: FakeApi, recorder: EventRecorder) -> None:
    """Contract 6.8: `osc-checker` must report core/v1 events; a repeat counts up."""
    async with running(recorder.run):
        for _ in range(2):
            recorder.core_event(
                NODE, event_type="Warning", reason="FileMissing", message="gone", component="osc-checker"
            )
            await asyncio.sleep(10)
    [event] = api.stored(CORE_EVENTS)
    event.pop("metadata")
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:10Z",
        "count": 2,
        "source": {"component": "osc-checker", "host": "host-1"},
        "reason": "FileMissing",
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": "worker-1", "uid": "u-1"},
        "message": "gone",
        "type": "Warning",
    }


async def test_repeats_are_counted_on_one_event(api: FakeApi, recorder: EventRecorder) -> None:
    """Contract 4.8: only create and patch are allowed, so repeats must be counted here and patched."""
    async with running(recorder.run):
        for _ in range(3):
            tell(recorder)
            await asyncio.sleep(60)
        tell(recorder, note="another")
        await asyncio.sleep(1)
    first, second = api.stored(EVENTS)
    assert first["series"] == {"count": 3, "lastObservedTime": "2026-01-01T00:02:00.000000Z"}
    assert "series" not in second
    assert {call.method for call in api.calls} == {"POST", "PATCH"}


async def test_late_repeat_is_a_new_event(api: FakeApi, recorder: EventRecorder) -> None:
    """After six minutes without a repeat the series has ended."""
    async with running(recorder.run):
        tell(recorder)
        await asyncio.sleep(361)
        tell(recorder)
        await asyncio.sleep(1)
    assert len(api.stored(EVENTS)) == 2


async def test_repeats_are_sent_every_ten_seconds_at_most(api: FakeApi, recorder: EventRecorder) -> None:
    """Contract 6.8: a repeat waits, so that the events of one OSC do not take the API server's time while the next is applied."""
    async with running(recorder.run):
        for _ in range(9):
            tell(recorder)
            await asyncio.sleep(1)
        assert [call.method for call in api.calls] == ["POST"]
        await asyncio.sleep(2)
        assert [call.method for call in api.calls] == ["POST", "PATCH"]
    [event] = api.stored(EVENTS)
    assert event["series"]["count"] == 9


async def test_expired_event_is_created_again(api: FakeApi, recorder: EventRecorder) -> None:
    """If the server has dropped the event of a series, the repeat creates a new one."""
    async with running(recorder.run):
        tell(recorder)
        await asyncio.sleep(1)
        api.remove(EVENTS, api.stored(EVENTS)[0]["metadata"]["name"], "default")
        tell(recorder)
        await asyncio.sleep(10)
    assert len(api.stored(EVENTS)) == 1


async def test_percent_signs_are_text(api: FakeApi, recorder: EventRecorder) -> None:
    """Contract 9 W27: a note must be plain text, never a format string."""
    async with running(recorder.run):
        tell(recorder, note="failed at 100%s {unit} %d")
        await asyncio.sleep(1)
    assert api.stored(EVENTS)[0]["note"] == "failed at 100%s {unit} %d"


def test_note_is_cut_between_characters() -> None:
    """A note has at most 1024 bytes, and ends with a whole character."""
    assert cut("x" * 1025) == "x" * 1024
    assert cut("ä" * 600) == "ä" * 512
    assert cut("€" * 400) == "€" * 341


async def test_delivery_is_retried(api: FakeApi, recorder: EventRecorder) -> None:
    """An event survives a short outage."""
    api.fail(Unavailable("away"))
    async with running(recorder.run):
        tell(recorder)
        await asyncio.sleep(10)
        api.heal()
        await asyncio.sleep(10)
    assert len(api.stored(EVENTS)) == 1
    assert recorder.dropped == 0


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(Forbidden("no", status=403), 5), (BadRequest("never", status=400), 1), (ValueError("a bug of ours"), 5)],
)
async def test_delivery_is_given_up(api: FakeApi, recorder: EventRecorder, error: Exception, attempts: int) -> None:
    """Contract 6.8: an event that cannot be delivered must be dropped after some attempts; the next one is delivered."""
    api.fail(error)  # type: ignore[arg-type]
    async with running(recorder.run):
        tell(recorder)
        await asyncio.sleep(60)
        assert (len(api.calls), recorder.dropped) == (attempts, 1)
        api.heal()
        tell(recorder)
        await asyncio.sleep(1)
    assert len(api.stored(EVENTS)) == 1


async def test_queue_is_bounded(api: FakeApi, recorder: EventRecorder) -> None:
    """Contract 6.8: recording must never block; what does not fit is dropped and counted."""
    for number in range(8):
        tell(recorder, note=str(number))
    assert recorder.dropped == 3
    async with running(recorder.run):
        await asyncio.sleep(1)
    assert [event["note"] for event in api.stored(EVENTS)] == ["0", "1", "2", "3", "4"]


async def test_long_names_are_cut(api: FakeApi, recorder: EventRecorder) -> None:
    """The name of an event stays a valid one for an object with the longest name; two of one moment differ."""
    long = ObjectReference(kind="Secret", name="x" * 253, namespace="kube-system")
    async with running(recorder.run):
        for note in ("a", "b"):
            recorder.event(long, event_type="Normal", reason="R", action="A", note=note, controller="c" * 200)
        await asyncio.sleep(1)
    first, second = api.stored(EVENTS)
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert len(first["metadata"]["name"]) <= 253
    assert len(first["reportingInstance"]) == 128
    assert (first["metadata"]["namespace"], first["regarding"]["namespace"]) == ("kube-system", "kube-system")


async def test_what_was_recorded_can_be_waited_for(api: FakeApi, recorder: EventRecorder) -> None:
    """Contract 7.2: who is about to end the process waits until its events are delivered, and not for ever."""
    loop = asyncio.get_running_loop()
    async with running(recorder.run):
        before = loop.time()
        await recorder.flush(deadline=5)
        assert loop.time() == before
        tell(recorder)
        tell(recorder, note="another")
        await recorder.flush(deadline=5)
        assert len(api.stored(EVENTS)) == 2
        assert loop.time() - before < 1
        api.fail(Unavailable("down"))
        tell(recorder, note="lost")
        before = loop.time()
        await recorder.flush(deadline=5)
        assert loop.time() - before == pytest.approx(5)


async def test_a_flush_of_nothing_ends_nothing(api: FakeApi, recorder: EventRecorder) -> None:
    """An own restart that nobody was told about before: what is recorded afterwards is still delivered."""
    async with running(recorder.run):
        await asyncio.sleep(1)
        await recorder.flush(deadline=5)
        await asyncio.sleep(1)
        tell(recorder)
        await asyncio.sleep(1)
    assert len(api.stored(EVENTS)) == 1
