"""Which units are restarted for what somebody else changed, also where somebody sets the clock."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from agents.core.files import FileError
from agents.kube.models import SECRETS
from nodeagent.controllers.operatingsystemconfig.reporter import ApplyFailed
from tests.support.drifting import DROP_IN, OTHER_DROP_IN, UNIT_FILE, restarted_since, touch
from tests.support.kept import SLOW
from tests.support.osc_agent import SLEEP, OscAgent, from_secret, inline

CLOCK_SET_BACK = -3600


def read_the_disks_clock(node: OscAgent, *, ahead: int) -> None:
    """Let the agent's wall clock be so far ahead of what files are stamped with from now on."""
    node.clock.jump(time.time() + ahead - node.clock.now().timestamp())


@pytest.mark.parametrize("looked", [True, False])
async def test_a_clock_that_is_set_back_before_a_change(applied: OscAgent, looked: bool) -> None:
    """Contract 9 W14, OURS: a unit runs since before: left alone if the file was seen right since; restarted if nobody looked."""
    read_the_disks_clock(applied, ahead=-CLOCK_SET_BACK)
    applied.start_process()
    async with applied.connected():
        restarted_since(applied, seconds=-600)
        applied.host.units["a.service"].since -= CLOCK_SET_BACK
        if looked:
            await applied.reconcile()
        applied.clock.jump(CLOCK_SET_BACK)
        touch(applied, "/etc/used", "wrong")
        await applied.reconcile()
        assert applied.read("/etc/used") == "used"
    assert applied.host.jobs == ([] if looked else [("restart", "a.service")])


@pytest.mark.parametrize("restarted", [True, False])
async def test_a_clock_that_is_set_back_after_a_change(applied: OscAgent, restarted: bool) -> None:
    """Contract 9 W14, OURS: a unit is started with what was wrong: the clock says before it, and it is restarted all the same."""
    read_the_disks_clock(applied, ahead=0)
    applied.start_process()
    async with applied.connected():
        await applied.reconcile()
        touch(applied, "/etc/used", "wrong")
        applied.clock.jump(CLOCK_SET_BACK)
        await asyncio.sleep(60)
        restarted_since(applied, seconds=0)
        applied.host.units["a.service"].since += CLOCK_SET_BACK + 60
        if restarted:
            applied.start_process()
        await applied.reconcile()
        assert applied.read("/etc/used") == "used"
    assert applied.host.jobs == [("restart", "a.service")]


async def test_all_that_differs_counts_for_the_restart(applied: OscAgent) -> None:
    """Contract 9 W14: wrong content and another mode of one file, and the mode of another: an event each, one restart."""
    async with applied.connected():
        touch(applied, "/etc/used", "wrong")
        (applied.root / "etc/used").chmod(0o600)
        (applied.root / "etc/also").chmod(0o600)
        restarted_since(applied, seconds=600)
        await applied.reconcile()
        assert (applied.read("/etc/used"), applied.read("/etc/also")) == ("used", "also")
    assert applied.host.jobs == [("restart", "a.service")]
    assert sorted(applied.drifted) == [
        ("FileMismatch", "put right"),
        ("FileModeMismatch", "put right"),
        ("FileModeMismatch", "put right"),
    ]


async def test_a_restart_is_counted_once(applied: OscAgent) -> None:
    """Contract 9 W14: four things at a time that ask for it are one restart of three an hour."""
    async with applied.connected():
        for path, text in (("/etc/used", "wrong"), ("/etc/also", "wrong"), (UNIT_FILE, "[Service]\n"), (DROP_IN, "x")):
            touch(applied, path, text)
        restarted_since(applied, seconds=600)
        await applied.reconcile()
    assert applied.host.jobs == [("restart", "a.service")]
    assert applied.budget.count("a.service") == 1
    assert len(applied.drifted) == 4


async def test_each_item_of_a_unit_is_told(applied: OscAgent) -> None:
    """Contract 9 W14: unit file, both drop-ins and enablement: an event each, one restart."""
    async with applied.connected():
        touch(applied, UNIT_FILE, "[Service]\n[Install]\nWantedBy=multi-user.target\n")
        touch(applied, DROP_IN, "wrong")
        (applied.root / OTHER_DROP_IN.lstrip("/")).unlink()
        (applied.root / "etc/systemd/system/multi-user.target.wants/a.service").unlink()
        restarted_since(applied, seconds=600)
        await applied.reconcile()
        assert (applied.read(UNIT_FILE), applied.read(DROP_IN)) == (SLEEP, "[Unit]\n")
        assert applied.read(OTHER_DROP_IN) == "[Service]\n"
    assert {reason for reason, _action in applied.drifted} == {
        "UnitMismatch",
        "DropInMismatch",
        "DropInMissing",
        "UnitEnableMismatch",
    }
    assert len(applied.drifted) == 4
    assert applied.host.jobs == [("restart", "a.service")]


@pytest.mark.parametrize("path", [DROP_IN, "/etc/used"])
@pytest.mark.parametrize("seconds", [-600, 600])
async def test_a_unit_that_was_started_without_what_is_gone_is_restarted(
    applied: OscAgent, path: str, seconds: int
) -> None:
    """Contract 9 W14: a drop-in or a file is removed: it is back, and the unit restarted if it was started without it."""
    async with applied.connected():
        (applied.root / path.lstrip("/")).unlink()
        restarted_since(applied, seconds=seconds)
        await applied.reconcile()
        assert applied.read(path) is not None
    assert applied.host.jobs == ([("restart", "a.service")] if seconds > 0 else [])
    assert len(applied.drifted) == 1


async def test_the_operating_systems_unit_file_in_place_of_ours_is_no_old_change(applied: OscAgent) -> None:
    """Contract 9 W14: ours is removed, a much older one of the operating system shows: a unit that ran before is left alone."""
    older = applied.root / "usr/lib/systemd/system/a.service"
    older.parent.mkdir(parents=True)
    older.write_text("[Service]\n")
    async with applied.connected():
        restarted_since(applied, seconds=10)
        folder = applied.root / "etc/systemd/system"
        (folder / "a.service").unlink()
        later = time.time() + 30
        os.utime(folder, (later, later))
        await applied.reconcile()
        assert applied.read(UNIT_FILE) == SLEEP
    assert applied.drifted == [("UnitMismatch", "put right")]
    assert applied.host.jobs == []


async def test_a_new_secret_restarts_also_where_a_mode_drifted(node: OscAgent) -> None:
    """Contract 9 W14, W44: seen in the same look, and the unit uses both: it is restarted for the Secret's new content."""
    node.put_secret("referenced", "key", "one")
    unit = {"name": "a.service", "content": SLEEP, "filePaths": ["/etc/secret", "/etc/used"]}
    node.publish(files=[from_secret("/etc/secret", "referenced"), inline("/etc/used", "used", 0o644)], units=[unit])
    async with node.connected():
        await node.reconcile()
        node.host.jobs.clear()
        node.put_secret("referenced", "key", "two")
        (node.root / "etc/used").chmod(0o600)
        await node.reconcile()
        assert node.read("/etc/secret") == "two"
    assert node.host.jobs == [("restart", "a.service")]


async def begin_a_repair_that_waits(node: OscAgent) -> None:
    """Let a unit run with a file that became wrong and cannot be put right, as its Secret is away."""
    unit = {"name": "a.service", "content": SLEEP, "filePaths": ["/etc/s"]}
    node.put_secret("s", "key", "right")
    node.publish(files=[from_secret("/etc/s", "s")], units=[unit])
    await node.reconcile()
    node.host.jobs.clear()
    touch(node, "/etc/s", "wrong")
    restarted_since(node, seconds=-600)
    node.api.remove(SECRETS, "s", "kube-system")
    with pytest.raises(ApplyFailed):
        await node.reconcile()
    assert node.host.jobs == []


@pytest.mark.parametrize("started_anew", [False, True])
@pytest.mark.parametrize("restarted", [True, False])
async def test_a_unit_that_starts_while_a_repair_waits(node: OscAgent, *, restarted: bool, started_anew: bool) -> None:
    """Contract 9 W14, OURS: what it needs cannot be brought, as a Secret is away; if it was started meanwhile, that was with what was wrong."""
    async with node.connected():
        await begin_a_repair_that_waits(node)
    if started_anew:
        node.start_process()
    async with node.connected():
        if restarted:
            restarted_since(node, seconds=600)
        with pytest.raises(ApplyFailed):
            await node.reconcile()
        assert (node.read("/etc/s"), node.host.jobs) == ("wrong", [])
        node.put_secret("s", "key", "right")
        await node.reconcile()
        assert node.read("/etc/s") == "right"
    assert node.host.jobs == ([("restart", "a.service")] if restarted else [])


async def test_an_owed_restart_is_counted_once(node: OscAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 9 W14, OURS: also where the journal cannot be written for some attempts."""
    async with node.connected():
        await begin_a_repair_that_waits(node)
        restarted_since(node, seconds=600)
        with monkeypatch.context() as full:
            full.setattr(node.journal, "begin", _no_space)
            for _ in range(5):
                with pytest.raises(FileError):
                    await node.reconcile()
        node.put_secret("s", "key", "right")
        await node.reconcile()
    assert (node.host.jobs, node.budget.count("a.service")) == ([("restart", "a.service")], 1)


def _no_space(*_arguments: object, **_more: object) -> None:
    raise FileError("journal not written", Path("/x"), OSError(28, "No space left on device"))


async def test_an_owed_restart_serves_what_drifts_meanwhile(node: OscAgent) -> None:
    """Contract 9 W14, OURS: one restart for both, and one of the three."""
    async with node.connected():
        await begin_a_repair_that_waits(node)
        restarted_since(node, seconds=600)
        touch(node, UNIT_FILE, "[Service]\nExecStart=/bin/true\n")
        node.drift.suspect(UNIT_FILE)
        with pytest.raises(ApplyFailed):
            await node.reconcile()
        node.put_secret("s", "key", "right")
        await node.reconcile()
    assert (node.read(UNIT_FILE), node.read("/etc/s")) == (SLEEP, "right")
    assert (node.host.jobs, node.budget.count("a.service")) == ([("restart", "a.service")], 1)


async def test_a_refused_restart_is_told_once(node: OscAgent) -> None:
    """Contract 9 W14, OURS: three in this hour, however often the repair is tried; in the next one it is made."""
    async with node.connected():
        await begin_a_repair_that_waits(node)
        restarted_since(node, seconds=600)
        for _ in range(3):
            node.budget.spend("a.service")
        for _ in range(20):
            with pytest.raises(ApplyFailed):
                await node.reconcile()
        assert node.budget.totals["suppressed"] == 1
        node.clock.advance(3700)
        node.put_secret("s", "key", "right")
        await node.reconcile()
    assert node.host.jobs == [("restart", "a.service")]


@pytest.mark.parametrize("wrong", ["mode", "content"])
async def test_a_unit_that_is_being_started_is_restarted_within_the_limit(node: OscAgent, wrong: str) -> None:
    """Contract 9 W14: a job under way is no other job: a mode restarts nothing, and content three times at most."""
    unit = {"name": "slow.service", "content": SLOW, "filePaths": ["/etc/slow"]}
    node.publish(files=[inline("/etc/slow", "slow", 0o644)], units=[unit])
    async with node.connected():
        await node.reconcile()
        for turn in range(8):
            if wrong == "mode":
                (node.root / "etc/slow").chmod(0o600)
            else:
                touch(node, "/etc/slow", f"wrong {turn}")
            node.drift.suspect("/etc/slow")
            await node.reconcile()
        await node.host.open_gate("g")
        await node.reconcile()
    assert len(node.host.jobs) == (1 if wrong == "mode" else 4)
