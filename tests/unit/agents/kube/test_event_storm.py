"""100,000 events' worth of retries: few objects, few requests, no memory, whatever the API server does meanwhile."""

import asyncio
import logging
import tracemalloc
from random import Random

import pytest
import structlog

from agents.kube.client import Client
from agents.kube.errors import TooManyRequests, Unavailable
from agents.kube.events import COMBINED, MOST_NOTES, QUEUE_LENGTH, EventRecorder, ObjectReference
from agents.kube.models import EVENTS
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.support.tasks import running

RETRIES = 100_000
MOST_GROWTH_BYTES = 512 * 1024
SINGLE = 3 * MOST_NOTES
NODE = ObjectReference(kind="Node", name="worker-1", uid="u-1")


class QuietApi(FakeApi):
    """Counts requests instead of keeping them, and its history short."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0

    async def request(self, *args: object, **kwargs: object) -> bytes:
        """Answer a request, and forget it."""
        self.sent += 1
        answer = await super().request(*args, **kwargs)  # type: ignore[arg-type]
        self.calls.clear()
        self._history.clear()
        return answer


@pytest.fixture(autouse=True)
def _no_lines() -> None:
    """Do not count what pytest keeps of the log."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


@pytest.fixture
def api() -> QuietApi:
    """An empty API server in memory."""
    return QuietApi()


@pytest.fixture
def recorder(api: QuietApi, clock: FakeClock) -> EventRecorder:
    """A recorder as the agent has it."""
    return EventRecorder(client=Client(transport=api, rng=Random(1)), instance="host-1", clock=clock)


def tell(recorder: EventRecorder, note: str) -> None:
    """Record a failure."""
    recorder.event(NODE, event_type="Warning", reason="OSCFailed", action="Reconcile", note=note, controller="c")


async def storm(recorder: EventRecorder, *, notes: int = 1) -> int:
    """Fail for 1,000 s; returns how many bytes the process has grown by after the first tenth."""
    base = 0
    for number in range(RETRIES):
        if number == RETRIES // 10:
            tracemalloc.start()
            base = tracemalloc.get_traced_memory()[0]
        tell(recorder, f"unit a.service: attempt with cause {number % notes}")
        if number % 50 == 0:
            await asyncio.sleep(0.5)
    await asyncio.sleep(60)
    grown = tracemalloc.get_traced_memory()[0] - base
    tracemalloc.stop()
    return grown


async def test_retries_in_a_row_are_one_event(api: QuietApi, recorder: EventRecorder) -> None:
    """Contract 4.8, 6.8: 100,000 failures within 1,000 s: one object that counts them, patched every 10 s."""
    async with running(recorder.run):
        grown = await storm(
            recorder,
        )
    [event] = api.stored(EVENTS)
    assert event["series"]["count"] == RETRIES
    assert recorder.dropped == 0
    assert api.sent <= 130
    assert grown < MOST_GROWTH_BYTES


async def test_retries_with_different_causes_are_bounded(api: QuietApi, recorder: EventRecorder) -> None:
    """Contract 6.8: each failure with a text of its own, as with a time in it: fifty objects in six minutes, and one for all others, which counts."""
    async with running(recorder.run):
        grown = await storm(recorder, notes=RETRIES)
    single = [event for event in api.stored(EVENTS) if not event["note"].startswith(COMBINED)]
    [common] = [event for event in api.stored(EVENTS) if event["note"].startswith(COMBINED)]
    assert len(single) == SINGLE
    assert not [event for event in single if "series" in event]
    assert common["series"]["count"] == RETRIES - SINGLE
    assert recorder.dropped == 0
    assert api.sent <= SINGLE + 130
    assert grown < MOST_GROWTH_BYTES


@pytest.mark.parametrize("error", [Unavailable("away"), TooManyRequests("slow", status=429)], ids=["away", "429"])
async def test_retries_during_an_outage_are_bounded(api: QuietApi, recorder: EventRecorder, error: Exception) -> None:
    """Contract 6.8: nobody takes them: the queue stays short, and afterwards what is new is delivered."""
    api.fail(error)  # type: ignore[arg-type]
    async with running(recorder.run):
        grown = await storm(recorder, notes=3)
        assert api.sent <= 400
        assert grown < MOST_GROWTH_BYTES
        api.heal()
        await asyncio.sleep(QUEUE_LENGTH)
        tell(recorder, "news")
        await asyncio.sleep(QUEUE_LENGTH)
    assert "news" in [event["note"] for event in api.stored(EVENTS)]
