"""The journal on a disk: order of writes, rate of writes, and every kill between two of them."""

import json
from pathlib import Path

import pytest

from agents.core.errors import FatalError
from agents.core.files import FileError, read_optional, write_atomic
from agents.core.generations import Generations
from osc.codec import decode
from osc.diff import Changes, OwnRestart, Touched, UnitChange, UnitCommand, diff
from osc.journal import Journal
from osc.merge import Effective
from osc.plan import RestartAgent, Step, plan
from osc.types import File, Unit
from tests.support.clock import FakeClock

OWN = "gardener-node-agent.service"
DOCUMENT = decode(b"spec: {files: [{path: /a}], newer: 1}").document


class Disk:
    """The real writer, with a list of what was written and a switch that lets it fail."""

    def __init__(self, folder: Path) -> None:
        self.pending = folder / "last-computed-osc-changes.yaml"
        self.last_applied = folder / "last-applied-osc.yaml"
        self.writes: list[tuple[str, bool]] = []
        self.fail_from: int | None = None

    def write(self, path: Path, content: bytes, *, mode: int, sync: bool = True) -> bool:
        """Write, or fail."""
        if self.fail_from is not None and len(self.writes) >= self.fail_from:
            raise FileError("file not written", path)
        self.writes.append((path.name, sync))
        return write_atomic(path, content, mode=mode, sync=sync)

    def tear(self) -> None:
        """Cut the pending changes off, as a power cut does with a file that was replaced without a sync."""
        content = self.pending.read_bytes()
        write_atomic(self.pending, content[: len(content) // 2], mode=0o600, sync=False)

    def journal(self, clock: FakeClock) -> Journal:
        """A journal as a new process has it."""
        return Journal(
            pending_path=self.pending,
            last_applied_path=self.last_applied,
            generations=Generations(self.pending.parent / "generations", self.write),
            clock=clock,
            write=self.write,
            read=read_optional,
        )


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """An empty state directory."""
    return Disk(tmp_path)


NEW = Effective(
    tuple(File(path=f"/f{number}") for number in range(100)),
    (Unit(name="u.service", content="x"), Unit(name=OWN, content="x", file_paths=("/f0",))),
)


def steps_of(changes: Changes) -> dict[str, Step]:
    """Return the steps of a plan by id."""
    return {step.id: step for step in plan(changes, NEW).steps}


def test_nothing_is_there_at_first(disk: Disk, clock: FakeClock) -> None:
    """Contract 6.3.9: on the first run there is neither a pending nor an applied OSC, and no damage."""
    journal = disk.journal(clock)
    loaded = journal.load()
    assert (loaded.pending, loaded.compare_with_disk) == (None, False)
    last = journal.load_last_applied()
    assert (last.decoded, last.torn) == (None, False)
    assert journal.pending is None
    journal.flush(sync=True)
    assert disk.writes == []


def test_begin_is_on_the_disk_before_anything_is_done(disk: Disk, clock: FakeClock) -> None:
    """Contract 6.4 a: the result is persisted, fsynced and 0600, before it is acted on."""
    changes = diff(NEW, old=None)
    disk.journal(clock).begin("c", changes, secret_digests={"/s": "1"})
    assert disk.writes == [("last-computed-osc-changes.yaml", True)]
    assert disk.pending.stat().st_mode & 0o777 == 0o600
    pending = disk.journal(clock).load().pending
    assert pending is not None
    assert pending.checksum == "c"
    assert pending.changes.files_changed == changes.files_changed
    assert pending.touched == changes.touched()
    assert pending.secret_digests == {"/s": "1"}


def test_done_is_written_every_32_steps_or_100_ms(disk: Disk, clock: FakeClock) -> None:
    """Contract 6.4 a: in between the file is rewritten at most every 100 ms or 32 steps, without fsync."""
    changes = diff(NEW, old=None)
    journal = disk.journal(clock)
    journal.begin("c", changes)
    files = [step for step in steps_of(changes).values() if step.verb == "write-file"]
    disk.writes.clear()
    journal.done(*files[:31])
    assert disk.writes == []
    journal.done(files[31])
    assert disk.writes == [("last-computed-osc-changes.yaml", False)]
    clock.advance(0.09)
    journal.done(files[32])
    assert len(disk.writes) == 1
    clock.advance(0.02)
    journal.done(files[33])
    assert len(disk.writes) == 2
    journal.done(files[34])
    journal.flush()
    journal.flush()
    assert len(disk.writes) == 3
    journal.flush(sync=True)
    assert disk.writes[-1] == ("last-computed-osc-changes.yaml", True)
    left = disk.journal(clock).load().pending
    assert left is not None
    assert left.changes.files_changed == NEW.files[35:]


def test_w01_unit_stays_until_all_its_parts_are_done(disk: Disk, clock: FakeClock) -> None:
    """Contract 9 W1: a unit that was written and not enabled is still whole in the journal."""
    changes = diff(NEW, old=None)
    steps = steps_of(changes)
    journal = disk.journal(clock)
    journal.begin("c", changes)
    journal.done(steps["write-unit:u.service"])
    journal.flush()
    left = disk.journal(clock).load().pending
    assert left is not None
    assert left.changes.units_changed == changes.units_changed
    journal.done(steps["enable-unit:u.service"])
    assert journal.pending is not None
    assert [change.unit.name for change in journal.pending.changes.units_changed] == [OWN]


def test_write_after_the_reload_asks_for_another_one(disk: Disk, clock: FakeClock) -> None:
    """Contract 6.2 step 18: what is written by a later attempt needs a reload again."""
    changes = diff(NEW, old=None)
    steps = steps_of(changes)
    journal = disk.journal(clock)
    journal.begin("c", changes)
    journal.done(steps["reload"])
    assert journal.pending is not None
    assert not journal.pending.changes.reload
    journal.done(steps["enable-unit:u.service"])
    assert not journal.pending.changes.reload
    journal.done(steps["write-unit:u.service"])
    assert journal.pending.changes.reload


@pytest.mark.parametrize(("path", "reload"), [("/etc/systemd/system/u.d/x", True), ("/etc/x", False)])
def test_removed_file_asks_for_a_reload_if_systemd_reads_it(
    disk: Disk, clock: FakeClock, path: str, reload: bool
) -> None:
    """Contract 9 W17: the removal of a plain file needs no reload, that of a unit's file does."""
    changes = Changes(files_deleted=(File(path=path),))
    journal = disk.journal(clock)
    journal.begin("c", changes)
    journal.done(plan(changes, Effective()).steps[0])
    assert journal.pending is not None
    assert journal.pending.changes.reload is reload


def test_commit_writes_last_applied_and_then_clears_the_journal(disk: Disk, clock: FakeClock) -> None:
    """Contract 6.2 step 25: last-applied holds the whole document, 0600; the journal keeps checksum and digests."""
    changes = diff(NEW, old=None)
    journal = disk.journal(clock)
    journal.begin("c", changes, secret_digests={"/s": "1"})
    journal.done(*steps_of(changes).values())
    journal.commit({**DOCUMENT, "kind": "", "metadata": {"creationTimestamp": None}})
    written = [write for write in disk.writes if write[0] in (disk.last_applied.name, disk.pending.name)]
    assert written[-2:] == [("last-applied-osc.yaml", True), ("last-computed-osc-changes.yaml", True)]
    assert disk.last_applied.stat().st_mode & 0o777 == 0o600
    stored = json.loads(disk.last_applied.read_bytes())
    assert (stored["apiVersion"], stored["kind"]) == ("extensions.gardener.cloud/v1alpha1", "OperatingSystemConfig")
    assert stored["spec"]["newer"] == 1
    decoded = disk.journal(clock).load_last_applied().decoded
    assert decoded is not None
    assert decoded.config.spec.files == (File(path="/a"),)
    pending = disk.journal(clock).load().pending
    assert pending is not None
    assert (pending.checksum, pending.changes, pending.touched) == ("c", Changes(), Touched())
    assert pending.secret_digests == {"/s": "1"}


def test_second_commit_of_the_same_writes_nothing_new(disk: Disk, clock: FakeClock) -> None:
    """Contract 6.10: an apply that waits for its Node commits every 5 s; the journal is not rewritten for that."""
    journal = disk.journal(clock)
    journal.begin("c", diff(NEW, old=None))
    journal.done(*steps_of(diff(NEW, old=None)).values())
    journal.commit(DOCUMENT)
    disk.writes.clear()
    before = disk.last_applied.stat().st_ino
    journal.commit(DOCUMENT)
    assert disk.writes == [("last-applied-osc.yaml", True)]
    assert disk.last_applied.stat().st_ino == before


@pytest.mark.parametrize("writes", range(7))
def test_kill_between_any_two_writes_of_a_commit(disk: Disk, clock: FakeClock, writes: int) -> None:
    """Contract 6.4: a kill in the middle of a commit leaves work that was done, or nothing to do; then it is committed."""
    changes = diff(NEW, old=None)
    journal = disk.journal(clock)
    journal.begin("c", changes)
    journal.done(*steps_of(changes).values())
    journal.done(steps_of(changes)["reload"])
    disk.fail_from = len(disk.writes) + writes
    # Journal up to date, last-applied announced, written, copied and recorded, journal emptied.
    if writes < 6:
        with pytest.raises(FileError):
            journal.commit(DOCUMENT)
    else:
        journal.commit(DOCUMENT)
    disk.fail_from = None
    again = disk.journal(clock)
    pending = again.load().pending
    assert pending is not None
    assert pending.checksum == "c"
    assert not pending.changes
    again.commit(DOCUMENT)
    assert again.load_last_applied().decoded is not None
    assert again.pending is not None
    assert not again.pending.unfinished


def test_failed_write_keeps_what_was_done_in_memory(disk: Disk, clock: FakeClock) -> None:
    """Issue section 5: with a full disk the step is not lost; the journal is written when there is room again."""
    changes = diff(NEW, old=None)
    steps = steps_of(changes)
    journal = disk.journal(clock)
    journal.begin("c", changes)
    disk.fail_from = 0
    clock.advance(1)
    with pytest.raises(FileError):
        journal.done(steps["write-file:/f0"])
    disk.fail_from = None
    journal.flush()
    left = disk.journal(clock).load().pending
    assert left is not None
    assert left.changes.files_changed == NEW.files[1:]


def test_superseding_apply_keeps_what_was_touched(disk: Disk, clock: FakeClock) -> None:
    """Contract 6.4 b, W10: until a commit, everything that any begun apply touches is remembered, across processes."""
    disk.journal(clock).begin("one", Changes(files_changed=(File(path="/one"),)), secret_digests={"/s": "1"})
    journal = disk.journal(clock)
    journal.begin(
        "two",
        Changes(units_changed=(UnitChange(Unit(name="u", content="")),), commands=(UnitCommand("u", "restart"),)),
        touched=Touched(frozenset({"/known"})),
    )
    pending = disk.journal(clock).load().pending
    assert pending is not None
    assert pending.checksum == "two"
    assert pending.touched.paths == {"/one", "/known"}
    assert set(pending.touched.units) == {"u"}
    assert pending.secret_digests == {"/s": "1"}
    assert pending.unfinished


def test_load_reads_the_file_once(disk: Disk, clock: FakeClock) -> None:
    """Contract 1.8: within one process what is known stays known, so a conditional restart stays conditional."""
    journal = disk.journal(clock)
    journal.begin("c", diff(NEW, old=None))
    pending = journal.load().pending
    assert pending is not None
    assert pending.changes.own_restart is OwnRestart.IF_CHANGED
    disk.pending.write_bytes(b"")
    assert journal.load().pending == pending


def test_changed_bytes_of_the_own_unit_require_the_restart(disk: Disk, clock: FakeClock) -> None:
    """Contract 1.8: once bytes of the own unit changed, the restart is required until it is done."""
    journal = disk.journal(clock)
    journal.begin("c", diff(NEW, old=None))
    journal.own_bytes_changed()
    journal.own_bytes_changed()
    assert journal.pending is not None
    assert journal.pending.changes.own_restart is OwnRestart.REQUIRED
    journal.done(steps_of(diff(NEW, old=None))["restart-agent"])
    journal.flush(sync=True)
    left = disk.journal(clock).load().pending
    assert left is not None
    assert left.changes.own_restart is OwnRestart.NONE


def test_synced_write_follows_an_unsynced_one_of_the_same_state(disk: Disk, clock: FakeClock) -> None:
    """Contract 6.4 a: a flush with fsync is a write of its own, though nothing changed since the one without."""
    journal = disk.journal(clock)
    journal.begin("c", Changes())
    journal.flush(sync=True)
    before = disk.pending.stat().st_ino
    journal.flush(sync=True)
    assert disk.pending.stat().st_ino != before


@pytest.mark.parametrize("content", [b"", b"{", b"operatingSystemConfigChecksum: c\nunits: 1"])
def test_damaged_journal_asks_for_a_comparison_with_the_disk(disk: Disk, clock: FakeClock, content: bytes) -> None:
    """Contract 6.4 d: an unreadable or truncated file is no file, followed by a full comparison with the disk."""
    disk.pending.write_bytes(content)
    loaded = disk.journal(clock).load()
    assert (loaded.pending, loaded.compare_with_disk) == (None, True)


def test_damaged_journal_is_as_good_as_the_one_that_was_synced_last(disk: Disk, clock: FakeClock) -> None:
    """Contract 6.4 a, d: what is not synced may be torn; what earlier, unfinished applies touched is known all the same (W10)."""
    disk.journal(clock).begin("one", Changes(files_changed=(File(path="/one"),)), secret_digests={"/s": "1"})
    journal = disk.journal(clock)
    journal.begin("two", Changes(files_changed=(File(path="/two"),)))
    disk.tear()
    loaded = disk.journal(clock).load()
    assert (loaded.pending, loaded.compare_with_disk) == (None, True)
    assert loaded.touched.paths == {"/one", "/two"}
    journal.commit(DOCUMENT)
    disk.tear()
    loaded = disk.journal(clock).load()
    assert loaded.before is not None
    assert (loaded.before.checksum, loaded.touched) == ("two", Touched())


def test_damaged_generation_of_a_damaged_journal_tells_nothing(disk: Disk, clock: FakeClock) -> None:
    """Contract 6.4 d: it has the same digest, and is held to it."""
    disk.journal(clock).begin("one", Changes(files_changed=(File(path="/one"),)))
    for path in (disk.pending, disk.pending.parent / "generations" / f"{disk.pending.name}.before"):
        content = path.read_bytes()
        path.write_bytes(content.replace(b"/one", b"/two"))
    loaded = disk.journal(clock).load()
    assert (loaded.before, loaded.compare_with_disk, loaded.touched) == (None, True, Touched())


def test_journal_that_cannot_be_read_asks_for_a_comparison(disk: Disk, clock: FakeClock) -> None:
    """Contract 6.4 d: so is something that is no file at all."""
    disk.pending.mkdir()
    assert disk.journal(clock).load().compare_with_disk


def test_journal_of_the_go_agent_asks_for_a_comparison_if_work_is_left(disk: Disk, clock: FakeClock) -> None:
    """Contract 6.4: the Go agent's file does not say what was touched; a finished one leaves no question."""
    disk.pending.write_bytes(b"operatingSystemConfigChecksum: c\nfiles: {changed: [{path: /a}]}\n")
    assert disk.journal(clock).load().compare_with_disk
    disk.pending.write_bytes(b"operatingSystemConfigChecksum: c\nfiles: {}\n")
    loaded = disk.journal(clock).load()
    assert loaded.pending is not None
    assert not loaded.compare_with_disk


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"kind: Other", b'{"spec": {"files": 1}}'])
def test_damaged_last_applied_is_none_and_said_to_be(disk: Disk, clock: FakeClock, content: bytes) -> None:
    """Contract 6.4 d: an unreadable last-applied is none, and the caller is told that there was one."""
    disk.last_applied.write_bytes(content)
    last = disk.journal(clock).load_last_applied()
    assert (last.decoded, last.torn) == (None, True)


def test_last_applied_that_cannot_be_read_is_said_to_be_torn(disk: Disk, clock: FakeClock) -> None:
    """Contract 6.4 d: so is something that is no file at all."""
    disk.last_applied.mkdir()
    assert disk.journal(clock).load_last_applied().torn


def test_last_applied_of_the_go_agent_is_read(disk: Disk, clock: FakeClock) -> None:
    """Contract Appendix B: disk state of any earlier agent is readable, its drop-ins and filePaths too (W13)."""
    disk.last_applied.write_bytes(
        b"apiVersion: extensions.gardener.cloud/v1alpha1\nkind: OperatingSystemConfig\nmetadata:\n"
        b"  creationTimestamp: null\nspec:\n  purpose: ''\n  type: ''\n  units:\n  - name: u\n    dropIns:\n"
        b"    - name: d\n      content: c\n    filePaths: [/a]\nstatus: {}\n"
    )
    decoded = disk.journal(clock).load_last_applied().decoded
    assert decoded is not None
    (unit,) = decoded.config.spec.units
    assert (unit.drop_ins[0].name, unit.file_paths) == ("d", ("/a",))


def test_use_before_begin_is_a_bug(disk: Disk, clock: FakeClock) -> None:
    """A commit, or a step that is done, without an apply that was begun is a broken invariant."""
    with pytest.raises(FatalError):
        disk.journal(clock).commit(DOCUMENT)
    with pytest.raises(FatalError):
        disk.journal(clock).done(plan(diff(NEW, old=None), NEW).steps[0])
    with pytest.raises(FatalError):
        disk.journal(clock).own_bytes_changed()


def test_a_restart_that_is_owed_is_owed_by_the_next_osc_too(disk: Disk, clock: FakeClock) -> None:
    """Contract 1.8, 6.4: our bytes changed for an OSC that was superseded before the restart; the next one restarts us."""
    journal = disk.journal(clock)
    journal.begin("one", Changes(own_restart=OwnRestart.REQUIRED))
    assert journal.begin("two", Changes()).own_restart is OwnRestart.REQUIRED
    journal.done(RestartAgent(required=True))
    assert journal.begin("three", Changes()).own_restart is OwnRestart.NONE


def test_the_checksum_of_last_applied_is_known_while_another_osc_is_applied(disk: Disk, clock: FakeClock) -> None:
    """Operators are told what is applied, also of an apply that is superseded, repaired or killed; at first nothing is."""
    journal = disk.journal(clock)
    journal.begin("one", Changes(files_changed=NEW.files))
    assert journal.pending is not None
    assert journal.pending.applied == ""
    journal.done(*steps_of(Changes(files_changed=NEW.files)).values())
    journal.commit(DOCUMENT)
    journal.begin("two", Changes(files_changed=NEW.files))
    journal.begin("three", Changes(files_changed=NEW.files))
    pending = disk.journal(clock).load().pending
    assert pending is not None
    assert (pending.checksum, pending.applied) == ("three", "one")
