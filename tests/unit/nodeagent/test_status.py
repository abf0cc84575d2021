"""The status file: complete, written when something changed, never torn, never a reason to fail."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest

from agents.core.errors import RetriableError
from nodeagent.status import WRITE, StatusBoard, StatusReconciler
from tests.support.clock import EPOCH, FakeClock


@pytest.fixture
def board(tmp_path: Path, clock: FakeClock) -> StatusBoard:
    """A board that writes below a folder that does not exist yet."""
    return StatusBoard(path=tmp_path / "run/status.json", clock=clock, version="v1.150.0")


async def test_status_has_all_that_operators_ask_for(board: StatusBoard, tmp_path: Path) -> None:
    """Phase, checksum, items with cause, since, attempt and next try, heartbeat and certificate; 0600."""
    await board.phase("failing", checksum="abc")
    await board.failing({"unit a.service": RetriableError("it broke", unit="a")}, next_try=EPOCH + timedelta(seconds=5))
    board.note_heartbeat()
    await board.certificate(EPOCH + timedelta(days=30))
    path = tmp_path / "run/status.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text()) == {
        "version": "v1.150.0",
        "phase": "failing",
        "checksum": "abc",
        "items": [
            {
                "name": "unit a.service",
                "cause": "it broke (unit=a)",
                "since": "2026-01-01T00:00:00+00:00",
                "attempt": 1,
                "nextTry": "2026-01-01T00:00:05+00:00",
            }
        ],
        "heartbeat": "2026-01-01T00:00:00+00:00",
        "certificateExpires": "2026-01-31T00:00:00+00:00",
    }


async def test_status_is_written_only_when_something_changed(board: StatusBoard, tmp_path: Path) -> None:
    """The same phase twice is one write: the file keeps its inode."""
    await board.phase("applied")
    before = (tmp_path / "run/status.json").stat().st_ino
    await board.phase("applied")
    assert (tmp_path / "run/status.json").stat().st_ino == before
    await board.phase("failing")
    assert json.loads((tmp_path / "run/status.json").read_text())["phase"] == "failing"


async def test_since_and_attempts_are_kept_while_an_item_fails(board: StatusBoard, tmp_path: Path) -> None:
    """An item that fails again keeps its since and counts; one that is mended and fails later begins anew."""
    for _ in range(3):
        await board.failing({"a": "x"}, next_try=None)
        await asyncio.sleep(60)
    (item,) = json.loads((tmp_path / "run/status.json").read_text())["items"]
    assert (item["attempt"], item["since"]) == (3, "2026-01-01T00:00:00+00:00")
    await board.failing({}, next_try=None)
    await board.failing({"a": "x"}, next_try=None)
    (item,) = json.loads((tmp_path / "run/status.json").read_text())["items"]
    assert (item["attempt"], item["since"]) == (1, "2026-01-01T00:03:00+00:00")


async def test_a_cause_is_cut(board: StatusBoard, tmp_path: Path) -> None:
    """A cause of any length stays readable."""
    await board.failing({"a": "x" * 100_000}, next_try=None)
    assert len((tmp_path / "run/status.json").read_text()) < 2000


async def test_a_status_that_cannot_be_written_is_no_error(tmp_path: Path, clock: FakeClock) -> None:
    """Operators lose sight, the node loses nothing; when it can be written again it is."""
    (tmp_path / "status.json").mkdir()
    board = StatusBoard(path=tmp_path / "status.json", clock=clock, version="v1")
    await board.phase("applied")
    (tmp_path / "status.json").rmdir()
    await board.phase("applied")
    assert json.loads((tmp_path / "status.json").read_text())["phase"] == "applied"


async def test_the_last_word_wins_when_several_write(board: StatusBoard, tmp_path: Path) -> None:
    """Heartbeat and OSC controller write at the same time: the file is whole and says what was said last."""
    for number in range(30):
        async with asyncio.TaskGroup() as group:
            for part in range(8):
                group.create_task(board.phase(f"{number}-{part}" * 200))
        assert json.loads((tmp_path / "run/status.json").read_text())["phase"] == f"{number}-7" * 200


async def test_a_heartbeat_is_noted_at_once_and_written_by_the_controller(board: StatusBoard, tmp_path: Path) -> None:
    """Contract 7.1: noting a heartbeat waits for no disk; the status controller writes it."""
    board.note_heartbeat()
    assert not (tmp_path / "run/status.json").exists()
    await StatusReconciler(board).reconcile(WRITE)
    assert json.loads((tmp_path / "run/status.json").read_text())["heartbeat"] == "2026-01-01T00:00:00+00:00"
