"""Checks become unhealthy by stored deadlines, not by timers."""

import asyncio

from agents.kube.errors import Forbidden
from agents.kube.models import NODES
from agents.runtime.cache import Cache
from agents.runtime.health import Checks, InformerSync, LoopLag, PeriodicHealth, ping
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.support.tasks import running


async def test_ping_passes() -> None:
    """Contract 1.6: the check `ping` must always pass."""
    assert await ping() is None


async def test_checks_by_group() -> None:
    """Liveness has `ping` from the start; what is added appears in its own group only."""

    async def failing() -> str | None:
        return "no"

    checks = Checks()
    checks.add_liveness("alive", failing)
    checks.add_readiness("ready", failing)
    assert list(checks.liveness) == ["ping", "alive"]
    assert list(checks.readiness) == ["ready"]


async def test_liveness_fails_after_three_unsynced_minutes(api: FakeApi, cache: Cache, clock: FakeClock) -> None:
    """Contract 1.6: liveness must fail only after 3 unsynced minutes without interruption; readiness must fail at once."""
    api.fail(Forbidden("no", status=403))
    cache.informer(NODES)
    check = InformerSync(clock=clock)
    check.add(cache)
    async with running(cache.run):
        assert await check.readiness() is not None
        await asyncio.sleep(179)
        assert await check.liveness() is None
        await asyncio.sleep(2)
        assert await check.liveness() is not None
        api.heal()
        await cache.wait_synced()
        assert await check.liveness() is None
        assert await check.readiness() is None


async def test_liveness_counts_without_being_asked(api: FakeApi, cache: Cache, clock: FakeClock) -> None:
    """Contract 1.6 (ours): the three minutes pass whether or not somebody polls, and start again after an interruption."""
    informer = cache.informer(NODES)
    check = InformerSync(clock=clock)
    check.add(cache)
    async with running(cache.run):
        await cache.wait_synced()
        await asyncio.sleep(3600)
        api.fail(Forbidden("no", status=403))
        other = cache.informer(NODES, label_selector="x=y")
        await asyncio.sleep(170)
        api.heal()
        await other.wait_synced()
        api.fail(Forbidden("no", status=403))
        cache.informer(NODES, label_selector="y=z")
        await asyncio.sleep(170)
        assert await check.liveness() is None
        assert await check.readiness() is not None
        await asyncio.sleep(11)
        assert await check.liveness() is not None
    assert informer.synced


async def test_without_a_cluster_alive_but_not_ready(clock: FakeClock) -> None:
    """While the certificate is still being requested there is no cluster: the process is alive and not ready."""
    check = InformerSync(clock=clock)
    assert await check.liveness() is None
    assert await check.readiness() == "no cluster is connected yet"


async def test_periodic_health_needs_beats(clock: FakeClock) -> None:
    """Healthy until the deadline that the last beat set, then unhealthy until the next."""
    health = PeriodicHealth(clock=clock, deadline_seconds=20)
    await asyncio.sleep(19)
    assert await health.check() is None
    await asyncio.sleep(1)
    assert await health.check() is not None
    health.beat()
    await asyncio.sleep(19)
    assert await health.check() is None


async def test_periodic_health_fails_at_once(clock: FakeClock) -> None:
    """A reported failure counts at once, and until the next beat."""
    health = PeriodicHealth(clock=clock, deadline_seconds=20)
    health.fail("seed is away")
    assert await health.check() == "seed is away"
    health.beat()
    assert await health.check() is None


async def test_a_loop_that_is_late_is_measured(clock: FakeClock) -> None:
    """Contract core 1.5, 13 W17: how late the last timer was; a loop in time is not late."""
    lag = LoopLag(clock=clock)
    async with running(lag.run):
        await asyncio.sleep(1.5)
        assert lag.seconds == 0
        clock.advance(3)
        await asyncio.sleep(1.5)
        assert lag.seconds >= 2
        await asyncio.sleep(1.5)
        assert lag.seconds == 0
