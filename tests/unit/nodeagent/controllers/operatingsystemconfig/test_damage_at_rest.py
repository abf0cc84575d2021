"""State files that are damaged or lost while nothing is to be done, and what another node agent does not note."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.osc_agent import SLEEP, OscAgent, from_image, from_secret, inline

FOREIGN = "mustRestartNodeAgent: false\nfiles: {}\nunits: {}\ncontainerd: {configFileChanged: false, registries: {}}\n"


def damage(path: Path, how: str) -> None:
    """Tear the journal, remove it, or leave one of an agent that notes no digests."""
    if how == "gone":
        path.unlink()
    elif how == "foreign":
        checksum = json.loads(path.read_bytes())["operatingSystemConfigChecksum"]
        path.write_text(f"operatingSystemConfigChecksum: {checksum}\n{FOREIGN}")
    else:
        path.write_bytes(b"{")


@pytest.fixture
async def applied(node: OscAgent) -> OscAgent:
    """A node that has applied an OSC with a file out of a Secret."""
    node.put_secret("credentials", "key", "one")
    node.publish(files=[from_secret("/etc/s", "credentials"), inline("/etc/a", "1")])
    async with node.connected():
        await node.reconcile()
    return node


@pytest.mark.parametrize("how", ["torn", "gone"])
async def test_a_journal_is_rebuilt_although_nothing_is_to_be_done(applied: OscAgent, how: str) -> None:
    """Contract 6.4 d, 9 W4: noticed at the next start, and the new one knows as much as the old one did."""
    before = json.loads(applied.paths.pending_changes.read_bytes())["x-journal"]["secretDigests"]
    damage(applied.paths.pending_changes, how)
    applied.start_process()
    async with applied.controlling():
        await asyncio.sleep(60)
    assert json.loads(applied.paths.pending_changes.read_bytes())["x-journal"]["secretDigests"] == before
    notes = [event["note"] for event in applied.events("StateDamaged")]
    assert len(notes) == (1 if how == "torn" else 0)
    assert applied.host.jobs == []


@pytest.mark.parametrize("how", ["torn", "gone", "foreign"])
async def test_w44_a_secret_is_followed_whatever_the_journal_knows(applied: OscAgent, how: str) -> None:
    """Contract 9 W44: what was written is found out from the disk where nobody noted it."""
    damage(applied.paths.pending_changes, how)
    applied.start_process()
    applied.put_secret("credentials", "key", "two")
    async with applied.controlling():
        await asyncio.sleep(60)
    assert applied.read("/etc/s") == "two"


@pytest.mark.parametrize("how", ["torn", "gone", "foreign"])
async def test_w44_also_with_an_osc_that_changes_something_else(applied: OscAgent, how: str) -> None:
    """Contract 9 W44: no digest of bytes is noted that were not written."""
    damage(applied.paths.pending_changes, how)
    applied.start_process()
    applied.put_secret("credentials", "key", "two")
    checksum = applied.publish(files=[from_secret("/etc/s", "credentials"), inline("/etc/a", "2")])
    async with applied.controlling():
        await asyncio.sleep(60)
    assert (applied.applied(), applied.read("/etc/s"), applied.read("/etc/a")) == (checksum, "two", "2")


@pytest.mark.parametrize("restarts", [0, 1], ids=["read", "set aside by a process that was killed"])
async def test_w10_what_a_superseded_osc_brought_goes_although_its_journal_is_torn(
    node: OscAgent, restarts: int
) -> None:
    """Contract 9 W10: the OSC before it comes back, whose checksum the Node still carries."""
    first = [inline("/etc/p", "x", 0o644)]
    node.publish(files=first)
    async with node.connected():
        await node.reconcile()
        image = from_image("/opt/x", "registry.example/none@sha256:1", "/x")
        node.publish(
            files=[*first, inline("/etc/more", "2"), image], units=[{"name": "more.service", "content": SLEEP}]
        )
        with pytest.raises(Exception, match="could not be applied"):
            await node.reconcile()
        assert node.read("/etc/more") == "2"
    checksum = node.publish(files=first)
    node.paths.pending_changes.write_bytes(b"")
    node.start_process()
    for _ in range(restarts):
        node.journal.load()
        node.start_process()
    async with node.controlling():
        await asyncio.sleep(60)
    assert node.applied() == checksum
    assert node.read("/etc/more") is None
    assert node.read("/etc/systemd/system/more.service") is None


@pytest.mark.parametrize("how", ["gone", "set aside and killed"])
async def test_a_last_applied_that_is_lost_is_rebuilt_and_what_it_named_can_leave(applied: OscAgent, how: str) -> None:
    """Contract 6.4, OURS: it was there once, so this is no first run: said once, written again, and a file that leaves is removed."""
    if how == "gone":
        applied.paths.last_applied.unlink()
    else:
        applied.paths.last_applied.write_bytes(b"{")
        applied.start_process()
        assert applied.journal.load_last_applied().torn
    applied.start_process()
    async with applied.controlling():
        await asyncio.sleep(60)
        assert applied.paths.last_applied.exists()
        assert len(applied.events("StateDamaged")) == 1
        checksum = applied.publish(files=[from_secret("/etc/s", "credentials")])
        await asyncio.sleep(60)
        assert (applied.applied(), applied.read("/etc/a")) == (checksum, None)


async def test_what_a_lost_last_applied_named_leaves_with_the_next_osc(applied: OscAgent) -> None:
    """Contract 6.4, OURS: lost while the agent was away, and by then there is another OSC."""
    applied.paths.last_applied.unlink()
    applied.start_process()
    checksum = applied.publish(files=[inline("/etc/b", "1")])
    async with applied.controlling():
        await asyncio.sleep(60)
        assert (applied.applied(), applied.read("/etc/a"), applied.read("/etc/s")) == (checksum, None, None)
