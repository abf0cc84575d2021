"""Carrying out a plan: what fails, fails alone; what was done is in the journal; nothing is forgotten."""

import asyncio
import os
from pathlib import Path

import pytest

from agents.core.errors import AgentError
from agents.core.files import FileError, write_atomic
from agents.core.generations import Generations
from nodeagent.controllers.operatingsystemconfig.apply import Applier
from osc.codec import decode
from osc.diff import Changes, diff
from osc.journal import Journal
from osc.merge import Effective, effective
from osc.plan import plan
from osc.types import DropIn, File, FileContent, Inline, Unit
from tests.support.osc_agent import SLEEP, OscAgent, inline
from tests.support.systemd_behaviour import gate

OWN = "gardener-node-agent.service"


def text(path: str, content: str = "x") -> File:
    """Return a file with inline content."""
    return File(path=path, content=FileContent(inline=Inline(data=content)))


class Disk:
    """Writes state files until it is full."""

    def __init__(self) -> None:
        self.full = False

    def write(self, path: Path, content: bytes, *, mode: int, sync: bool = True) -> bool:
        """Write, or fail."""
        if self.full:
            raise FileError("file not written", path, OSError(28, "No space left on device"))
        return write_atomic(path, content, mode=mode, sync=sync)


class Apply:
    """An applier with a journal on a disk that can be full."""

    def __init__(self, agent: OscAgent) -> None:
        self.agent, self.disk, self.removed = agent, Disk(), list[str]()
        self.journal = Journal(
            pending_path=agent.paths.pending_changes,
            last_applied_path=agent.paths.last_applied,
            generations=Generations(agent.paths.generations, self.disk.write),
            clock=agent.clock,
            write=self.disk.write,
        )
        self.applier = Applier(
            unit_manager=agent.units,
            jobs=agent.jobs,
            journal=self.journal,
            containerd=agent.containerd_files,
            images=agent.images,
            originals=agent.originals,
            file_removed=self.removed.append,
            check=agent.lock.check,
            clock=agent.clock,
            root=agent.root,
        )

    async def __call__(self, wanted: Effective, changes: Changes, **broken: AgentError):  # type: ignore[no-untyped-def]
        """Begin and carry out."""
        self.journal.begin("checksum", changes)
        return await self.go_on(wanted, broken)

    async def go_on(self, wanted: Effective, broken: dict[str, AgentError] | None = None):  # type: ignore[no-untyped-def]
        """Carry out what is left."""
        pending = self.journal.pending
        assert pending is not None
        contents: dict[str, bytes | AgentError] = {
            file.path: file.content.inline.data.encode() for file in wanted.files if file.content.inline
        }
        return await self.applier.apply(plan(pending.changes, wanted), contents | (broken or {}), seconds=60)

    @property
    def left(self) -> set[str]:
        """Return what the journal still has."""
        pending = self.journal.pending
        assert pending is not None
        return {f"{entry.kind.value} {entry.key}".strip() for entry in pending.changes.entries()}


@pytest.fixture
def apply(agent: OscAgent) -> Apply:
    """An applier on the machine."""
    return Apply(agent)


async def test_everything_done_leaves_an_empty_journal(apply: Apply, agent: OscAgent) -> None:
    """Contract 6.4: an item leaves the journal after it was done."""
    wanted = Effective(
        (text("/etc/a"),), (Unit(name="a.service", content=SLEEP, drop_ins=(DropIn(name="1", content="#"),)),)
    )
    outcome = await apply(wanted, diff(wanted, old=None))
    await agent.units.close()
    assert (outcome.failed, outcome.waiting, outcome.restart) == ({}, {}, False)
    assert apply.left == set()
    assert agent.read("/etc/systemd/system/a.service.d/1") == "#"


async def test_a_file_that_cannot_be_written_fails_alone(apply: Apply, agent: OscAgent) -> None:
    """Contract 6.5, 6.2: a directory in the place of a file: named with its path, the others are written, it stays in the journal."""
    (agent.root / "etc/bad").mkdir()
    wanted = Effective((text("/etc/bad"), text("/etc/good")), ())
    outcome = await apply(wanted, diff(wanted, old=None))
    await agent.units.close()
    assert list(outcome.failed) == ["file /etc/bad"]
    assert outcome.steps == {("write-file", "done"): 1, ("write-file", "failed"): 1, ("reload", "done"): 1}
    assert "etc/bad" in str(outcome.failed["file /etc/bad"])
    assert agent.read("/etc/good") == "x"
    assert apply.left == {"file-changed /etc/bad"}


async def test_a_unit_whose_file_failed_is_not_started(apply: Apply, agent: OscAgent) -> None:
    """Contract 6.6: a unit is not restarted while one of its files or its own definition could not be written; others are."""
    (agent.root / "etc/bad").mkdir()
    (agent.root / "etc/systemd/system/broken.service").mkdir()
    units = (
        Unit(name="needs.service", content=SLEEP, file_paths=("/etc/bad",)),
        Unit(name="broken.service", content=SLEEP),
        Unit(name="good.service", content=SLEEP),
    )
    wanted = Effective((text("/etc/bad"),), units)
    outcome = await apply(wanted, diff(wanted, old=None))
    await agent.units.close()
    assert sorted(outcome.failed) == ["file /etc/bad", "unit broken.service"]
    assert outcome.waiting.keys() >= {"unit needs.service", "unit broken.service"}
    assert agent.host.received.count("RestartUnit") == 1
    assert agent.host.units["good.service"].active_state == "active"


async def test_w01_resume_after_a_failed_enable_keeps_the_drop_ins(apply: Apply, agent: OscAgent) -> None:
    """Contract 9 W1: a failure after the drop-ins were written, and the next attempt, lose none of them, and the unit is enabled."""
    drop_ins = (DropIn(name="10-a.conf", content="[Service]\n"), DropIn(name="20-b.conf", content="[Service]\n"))
    wanted = Effective((), (Unit(name="missing.service", drop_ins=drop_ins),))
    first = await apply(wanted, diff(wanted, old=None))
    assert list(first.failed) == ["unit missing.service"]
    agent.host.write_unit("missing.service", SLEEP)
    second = await apply.go_on(wanted)
    await agent.units.close()
    assert second.failed == {}
    folder = agent.root / "etc/systemd/system/missing.service.d"
    assert sorted(path.name for path in folder.iterdir()) == ["10-a.conf", "20-b.conf"]
    assert agent.host.is_enabled("missing.service")


async def test_a_removed_file_is_told(apply: Apply, agent: OscAgent) -> None:
    """Contract 6.5, 7.9: a deleted file goes after the unit commands and is told to who may keep a token there; missing is fine."""
    (agent.root / "etc/a").write_text("x")
    old = Effective((text("/etc/a"), text("/etc/gone"), text("/etc/folder/b")), ())
    (agent.root / "etc/folder").mkdir()
    (agent.root / "etc/folder/b").write_text("x")
    outcome = await apply(Effective(), diff(Effective(), old=old))
    await agent.units.close()
    assert outcome.failed == {}
    assert agent.read("/etc/a") is None
    assert (agent.root / "etc/folder").is_dir()
    assert sorted(apply.removed) == ["/etc/a", "/etc/folder/b", "/etc/gone"]


async def test_files_are_kept_while_a_unit_that_uses_them_did_not_stop(apply: Apply, agent: OscAgent) -> None:
    """Contract 6.2: a file goes only after the job of the unit that used it; a job that goes on holds it back."""
    (agent.root / "etc/a").write_text("x")
    agent.host.write_unit("slow.service", gate("slow"))
    before = Unit(name="slow.service", content=SLEEP, file_paths=("/etc/a",))
    after = Unit(name="slow.service", content=gate("slow"))
    wanted = Effective((), (after,))
    outcome = await apply(wanted, diff(wanted, old=Effective((text("/etc/a"),), (before,))))
    assert "file /etc/a" in outcome.waiting
    assert agent.read("/etc/a") == "x"
    await agent.host.open_gate("slow")
    outcome = await apply.go_on(wanted)
    await agent.units.close()
    assert outcome.failed == {}
    assert agent.read("/etc/a") is None


async def test_a_refused_reload_holds_back_jobs_only(apply: Apply, agent: OscAgent) -> None:
    """Contract 6.7: an error of daemon-reload is its own failure; no unit is started with an old definition."""
    agent.host.silent.add("Reload")
    wanted = Effective((text("/etc/a"),), (Unit(name="a.service", content=SLEEP),))
    outcome = await apply(wanted, diff(wanted, old=None))
    agent.host.silent.clear()
    assert list(outcome.failed) == ["systemd daemon-reload"]
    assert agent.read("/etc/a") == "x"
    assert agent.host.received.count("RestartUnit") == 0
    assert (await apply.go_on(wanted)).failed == {}
    await agent.units.close()
    assert agent.host.units["a.service"].active_state == "active"


async def test_a_bus_that_is_away_fails_units_and_no_files(apply: Apply, agent: OscAgent) -> None:
    """Contract 6.7: without D-Bus files are written, each unit fails by name, and all is made up for when it is back."""
    await agent.host.stop_bus()
    wanted = Effective((text("/etc/a"),), (Unit(name="a.service", content=SLEEP),))
    outcome = await apply(wanted, diff(wanted, old=None))
    assert sorted(outcome.failed) == ["systemd daemon-reload", "unit a.service"]
    assert agent.read("/etc/a") == "x"
    await agent.host.start()
    assert (await apply.go_on(wanted)).failed == {}
    await agent.units.close()
    assert apply.left == set()


async def test_own_restart_is_required_after_a_kill_too(apply: Apply, agent: OscAgent) -> None:
    """Contract 1.8, 6.4: own bytes that changed are in the journal before the restart, so that no kill forgets it."""
    wanted = Effective((text("/etc/own", "new"),), (Unit(name=OWN, content=SLEEP, file_paths=("/etc/own",)),))
    agent.host.silent.add("Reload")
    outcome = await apply(wanted, diff(wanted, old=None))
    assert outcome.restart is False
    agent.host.silent.clear()
    again = Apply(agent)
    assert again.journal.pending is not None
    outcome = await again.go_on(wanted)
    await agent.units.close()
    assert outcome.restart is True


async def test_a_full_disk_at_the_own_restart_does_not_lose_it(apply: Apply, agent: OscAgent) -> None:
    """Contract 1.8: if the journal cannot be written at the own restart, the next pass of this process restarts."""
    wanted = Effective((text("/etc/own", "new"),), (Unit(name=OWN, content=SLEEP, file_paths=("/etc/own",)),))
    agent.host.silent.add("Reload")
    assert (await apply(wanted, diff(wanted, old=None))).restart is False
    agent.host.silent.clear()
    apply.disk.full = True
    outcome = await apply.go_on(wanted)
    assert (outcome.restart, list(outcome.failed)) == (False, ["the whole pass"])
    apply.disk.full = False
    outcome = await apply.go_on(wanted)
    await agent.units.close()
    assert outcome.restart is True


async def test_a_full_state_disk_changes_nothing(apply: Apply, agent: OscAgent) -> None:
    """Contract 6.3, 6.4: the changes are on the disk before anything is done; if that fails, nothing is done."""
    apply.disk.full = True
    wanted = Effective((text("/etc/a"),), ())
    with pytest.raises(FileError, match=r"last-computed-osc-changes\.yaml"):
        await apply(wanted, diff(wanted, old=None))
    assert agent.read("/etc/a") is None


async def test_cancelling_an_apply_leaves_a_journal_that_goes_on(apply: Apply, agent: OscAgent) -> None:
    """Contract 1.7: SIGTERM in the middle of an apply: files are whole, no temporary file is left, the next process goes on."""
    files = tuple(text(f"/etc/many/{number}", "x" * 1000) for number in range(300))
    wanted = Effective(files, (Unit(name="slow.service", content=gate("slow")),))
    task = asyncio.ensure_future(apply(wanted, diff(wanted, old=None)))  # noqa: TID251
    await asyncio.sleep(0)
    await agent.host.wait_called("RestartUnit")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    names = {path.name for path in (agent.root / "etc/many").iterdir()}
    assert names == {str(number) for number in range(300)}
    await agent.host.open_gate("slow")
    again = Apply(agent)
    assert again.left == {"command slow.service"}
    assert (await again.go_on(wanted)).failed == {}
    await agent.units.close()


async def test_moving_a_file_between_spec_and_status_is_no_change(agent: OscAgent) -> None:
    """Contract 6.3: spec and extension files are one list."""
    entry = inline("/etc/a", "x")
    spec = decode(f'{{"spec": {{"files": [{entry}]}}}}'.replace("'", '"').encode())
    status = decode(f'{{"status": {{"extensionFiles": [{entry}]}}}}'.replace("'", '"').encode())
    changes = diff(effective(status.config, hostname="h"), old=effective(spec.config, hostname="h"))
    assert not changes


async def test_modes_of_what_is_written(apply: Apply, agent: OscAgent) -> None:
    """Contract 3, 6.6, 9 W23: unit files and drop-ins 0600, their folder 0755, files 0600 unless given; whatever the umask."""
    before = os.umask(0o077)
    try:
        unit = Unit(name="a.service", content=SLEEP, drop_ins=(DropIn(name="1.conf", content="[Service]\n"),))
        wanted = Effective(
            (
                text("/etc/deep/er/a"),
                File(path="/etc/b", permissions=0o4755, content=FileContent(inline=Inline(data="x"))),
            ),
            (unit,),
        )
        await apply(wanted, diff(wanted, old=None))
    finally:
        os.umask(before)
    await agent.units.close()
    modes = {
        path: (agent.root / path).stat().st_mode & 0o7777
        for path in (
            "etc/systemd/system/a.service",
            "etc/systemd/system/a.service.d",
            "etc/systemd/system/a.service.d/1.conf",
            "etc/deep/er",
            "etc/deep/er/a",
            "etc/b",
        )
    }
    assert list(modes.values()) == [0o600, 0o755, 0o600, 0o755, 0o600, 0o755]
