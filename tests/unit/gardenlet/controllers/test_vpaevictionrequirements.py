"""When vertical pod autoscalers may make pods smaller."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from agents.kube.client import Client
from agents.kube.errors import Conflict
from agents.runtime.cache import Cache
from agents.runtime.controller import Environment
from agents.runtime.metrics import Metrics
from gardenlet.controllers.vpaevictionrequirements.controller import (
    IN_WINDOW,
    NEVER,
    REQUIREMENT,
    RESTRICTION,
    SELECTOR,
    VERTICAL_POD_AUTOSCALERS,
    WINDOW,
    new_controller,
)
from gardenlet.controllers.vpaevictionrequirements.window import InvalidWindow, Window
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.support.tasks import running

HOUR = 3600.0


def at(hour: int, minute: int = 0, day: int = 1) -> datetime:
    """Return a moment of January 2026, UTC."""
    return datetime(2026, 1, day, hour, minute, tzinfo=UTC)


class Scaling:
    """An autoscaler, and a clock that starts where a test wants."""

    def __init__(self) -> None:
        self.clock = FakeClock(at(12))
        self.api = FakeApi()

    def put(self, restriction: str | None, window: str = "220000+0100,000000+0100", **spec: Any) -> None:
        """Create or change the autoscaler."""
        key, value = SELECTOR.split("=")
        annotations = {WINDOW: window, **({RESTRICTION: restriction} if restriction is not None else {})}
        metadata = {"name": "a", "namespace": "n", "labels": {key: value}, "annotations": annotations}
        self.api.put(VERTICAL_POD_AUTOSCALERS, {"metadata": metadata, "spec": {"targetRef": {"name": "x"}, **spec}})

    def requirements(self) -> Any:
        """Return what is required for an eviction."""
        found = self.api.read(VERTICAL_POD_AUTOSCALERS, "a", "n")
        assert found is not None
        assert found["spec"]["targetRef"] == {"name": "x"}
        return (found["spec"].get("updatePolicy") or {}).get("evictionRequirements")

    @asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        """Run the controller."""
        client = Client(transport=self.api, rng=Random(1))
        cache = Cache(client=client, clock=self.clock, rng=Random(2))
        autoscalers = cache.informer(VERTICAL_POD_AUTOSCALERS, label_selector=SELECTOR)
        controller = new_controller(client=client, autoscalers=autoscalers, clock=self.clock, workers=5)
        environment = Environment(clock=self.clock, rng=Random(3), metrics=Metrics())
        async with running(cache.run, lambda: controller.run(environment)):
            await asyncio.sleep(2)
            yield


@pytest.fixture
async def scaling() -> Scaling:
    """No autoscaler yet."""
    return Scaling()


async def test_never(scaling: Scaling) -> None:
    """Contract core 10: written once, also where there is no update policy; what else is there stays."""
    scaling.put(NEVER)
    async with scaling.going():
        assert scaling.requirements() == [REQUIREMENT]
        writes = sum(call.method == "PATCH" for call in scaling.api.calls)
        await asyncio.sleep(48 * HOUR)
        assert sum(call.method == "PATCH" for call in scaling.api.calls) == writes == 1


async def test_in_the_window_and_outside(scaling: Scaling) -> None:
    """Contract core 10, W36: from 21:00 to five minutes before 23:00 UTC it is lifted, each day, and not earlier."""
    scaling.put(IN_WINDOW, updatePolicy={"updateMode": "Auto"})
    async with scaling.going():
        for _ in range(3):
            assert scaling.requirements() == [REQUIREMENT]
            await asyncio.sleep(8.95 * HOUR)
            assert scaling.requirements() == [REQUIREMENT]
            await asyncio.sleep(0.1 * HOUR)
            assert scaling.requirements() is None
            await asyncio.sleep(1.8 * HOUR)
            assert scaling.requirements() is None
            await asyncio.sleep(0.1 * HOUR)
            assert scaling.requirements() == [REQUIREMENT]
            await asyncio.sleep(13.05 * HOUR)
        found = scaling.api.read(VERTICAL_POD_AUTOSCALERS, "a", "n")
        assert found is not None
        assert found["spec"]["updatePolicy"]["updateMode"] == "Auto"


async def test_a_window_across_midnight(scaling: Scaling) -> None:
    """Contract core 10, W36: after midnight the same window goes on, and ends the same night."""
    scaling.clock = FakeClock(at(0, 30))
    scaling.put(IN_WINDOW, "230000+0000,010000+0000")
    async with scaling.going():
        assert scaling.requirements() is None
        await asyncio.sleep(0.45 * HOUR)
        assert scaling.requirements() == [REQUIREMENT]
        await asyncio.sleep(22.2 * HOUR)
        assert scaling.requirements() is None


@pytest.mark.parametrize(
    ("restriction", "window"),
    [(None, "220000+0100,230000+0100"), ("sometimes", ""), (IN_WINDOW, ""), (IN_WINDOW, "a,b")],
)
async def test_what_says_nothing_is_left_alone(scaling: Scaling, restriction: str | None, window: str) -> None:
    """Contract core 10: logged, not tried again, nothing written."""
    scaling.put(restriction, window)
    async with scaling.going():
        await asyncio.sleep(24 * HOUR)
        assert all(call.method == "GET" for call in scaling.api.calls)


async def test_an_annotation_that_changes(scaling: Scaling) -> None:
    """Contract core 10: another restriction is followed at once; a conflict is answered with a fresh read."""
    scaling.put(IN_WINDOW, "110000+0000,130000+0000")
    async with scaling.going():
        assert scaling.requirements() is None
        scaling.api.fail(Conflict("changed", status=409), method="PATCH", times=1)
        scaling.put(NEVER)
        await asyncio.sleep(2)
        assert scaling.requirements() == [REQUIREMENT]


async def test_one_that_is_gone_is_not_created_again(scaling: Scaling) -> None:
    """Contract core 10, W36: patched, never created; gone ends quietly."""
    scaling.put(IN_WINDOW)
    async with scaling.going():
        scaling.api.remove(VERTICAL_POD_AUTOSCALERS, "a", "n")
        await asyncio.sleep(24 * HOUR)
        assert scaling.api.read(VERTICAL_POD_AUTOSCALERS, "a", "n") is None


@pytest.mark.parametrize(
    ("text", "begin", "hours"),
    [
        ("220000+0100,230000+0100", 21, 1),
        ("220000-0300,000000-0300", 1, 2),
        ("233000+0000,003000+0000", 23.5, 1),
        ("000000+0000,235959+0000", 0, 23 + 3599 / 3600),
    ],
)
def test_windows(text: str, begin: float, hours: float) -> None:
    """Contract core 10: normalised to UTC, across midnight."""
    window = Window.parse(text)
    assert (window.begin, window.length) == (timedelta(hours=begin), timedelta(hours=hours))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "220000+0100",
        "220000,230000",
        "250000+0000,010000+0000",
        "220000+0100,220000+0100",
        "220000+9900,230000+0100",
    ],
)
def test_what_is_no_window(text: str) -> None:
    """Contract core 10: malformed values are said, and nothing happens."""
    with pytest.raises(InvalidWindow):
        Window.parse(text)


def test_both_ends_belong_to_it() -> None:
    """Contract core 10: inclusive; one second after the end it is the next day's."""
    window = Window.parse("220000+0000,230000+0000")
    assert window.occurrence(at(23))[1] == at(23)
    assert window.occurrence(at(23) + timedelta(seconds=1))[0] == at(22, day=2)
    assert window.occurrence(at(22))[0] == at(22)
