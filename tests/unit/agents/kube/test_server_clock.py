"""The API server's time out of `Date` headers: of one second's resolution, from answers that took their time."""

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from structlog.testing import capture_logs

from agents.kube.server_clock import ServerClock
from tests.support.clock import FakeClock

HOUR = 3600.0


@pytest.fixture
def server() -> FakeClock:
    """The API server's own clock."""
    return FakeClock()


@pytest.fixture
def known(clock: FakeClock) -> ServerClock:
    """What the machine knows of it; nothing yet."""
    return ServerClock(clock=clock, name="shoot")


def answer(known: ServerClock, server: FakeClock, *, asked_ago: float = 0.0) -> None:
    """Let an answer arrive whose header was written right now."""
    known.note(format_datetime(server.now(), usegmt=True), sent=server.monotonic() - asked_ago)


async def test_without_an_answer_it_is_the_machines_clock(known: ServerClock, clock: FakeClock) -> None:
    """Before the first answer nothing else is known."""
    clock.jump(HOUR)
    assert known.now() == clock.now()
    assert known.ahead is None


@pytest.mark.parametrize("difference", [-4.9, -1.0, 0.0, 1.0, 4.9])
async def test_up_to_five_seconds_it_is_the_machines_clock(
    known: ServerClock, clock: FakeClock, server: FakeClock, difference: float
) -> None:
    """A difference of less than 5 s is left alone, at whatever fraction of a second the header was cut off."""
    clock.jump(difference)
    for _ in range(40):
        await asyncio.sleep(0.37)
        answer(known, server)
        assert known.now() == clock.now()
    assert known.ahead is None


@pytest.mark.parametrize("difference", [-HOUR, -6.5, 6.5, HOUR, 1e9])
async def test_beyond_five_seconds_it_is_the_servers(
    known: ServerClock, clock: FakeClock, server: FakeClock, difference: float
) -> None:
    """A larger difference is corrected to within a second from the first answer on, and soon to a fraction of one."""
    clock.jump(difference)
    with capture_logs() as lines:
        answer(known, server)
        assert abs(known.now() - server.now()) <= timedelta(seconds=1)
        for _ in range(40):
            await asyncio.sleep(0.37)
            answer(known, server)
    assert abs(known.now() - server.now()) < timedelta(seconds=0.2)
    [line] = lines
    assert line["log_level"] == "error"
    assert line["aheadSeconds"] == pytest.approx(difference, abs=1)
    assert known.ahead is not None


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
async def test_a_jump_between_two_answers_is_noticed_at_once(
    known: ServerClock, clock: FakeClock, server: FakeClock, jump: float
) -> None:
    """The server's time is kept by the monotonic clock: no answer is needed to see that the machine's clock has jumped."""
    answer(known, server)
    await asyncio.sleep(1000)
    clock.jump(jump)
    assert abs(known.now() - server.now()) <= timedelta(seconds=1)
    clock.jump(-jump)
    assert known.now() == clock.now()


async def test_each_change_is_said_once(known: ServerClock, clock: FakeClock, server: FakeClock) -> None:
    """An hour ahead, an hour behind, well again: three lines, however many answers come."""
    with capture_logs() as lines:
        for jump in (HOUR, -2 * HOUR, HOUR):
            clock.jump(jump)
            for _ in range(100):
                await asyncio.sleep(10)
                answer(known, server)
    assert [line.get("aheadSeconds") for line in lines] == [3600, -3600, None]
    assert [line["log_level"] for line in lines] == ["error", "error", "info"]


async def test_a_slow_answer_teaches_nothing_wrong(known: ServerClock, clock: FakeClock, server: FakeClock) -> None:
    """An answer that took 30 s may have been written long before it came: neither a difference nor its end follows from it."""
    date = format_datetime(server.now(), usegmt=True)
    await asyncio.sleep(30)
    known.note(date, sent=server.monotonic() - 30)
    assert known.ahead is None
    clock.jump(8)
    answer(known, server)
    before = repr(known.ahead)
    assert before != "None"
    date = format_datetime(server.now(), usegmt=True)
    await asyncio.sleep(30)
    known.note(date, sent=server.monotonic() - 30)
    assert repr(known.ahead) == before


async def test_a_server_whose_clock_jumps_is_followed(known: ServerClock, clock: FakeClock, server: FakeClock) -> None:
    """Leases are judged by the server's side, so its time counts, wrong or not."""
    answer(known, server)
    server.jump(HOUR)
    answer(known, server)
    assert abs(known.now() - server.now()) <= timedelta(seconds=1)
    assert known.now() > clock.now() + timedelta(minutes=59)


@pytest.mark.parametrize("date", [None, "", "now", "Thu, 99 Foo 2026", "0", "Thu, 01 Jan 99999 00:00:00 GMT", "\x00"])
async def test_what_is_no_date_is_ignored(known: ServerClock, clock: FakeClock, date: str | None) -> None:
    """A proxy may send anything, or nothing."""
    known.note(date, sent=clock.monotonic())
    assert known.now() == clock.now()


async def test_times_are_aware(known: ServerClock, clock: FakeClock) -> None:
    """A date without a zone is taken as UTC, and what comes out is UTC."""
    known.note("Thu, 01 Jan 2032 00:00:00", sent=clock.monotonic())
    assert abs(known.now() - datetime(2032, 1, 1, tzinfo=UTC)) <= timedelta(seconds=1)
