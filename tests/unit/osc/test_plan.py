"""The order of steps, what waits for what, and what is blocked by a failure."""

from osc.diff import Changes, EntryKind, OwnRestart, UnitChange, UnitCommand, diff
from osc.merge import Effective
from osc.plan import DisableUnit, EnableUnit, RemoveUnit, RestartAgent, RunUnitCommand, WriteFile, WriteUnit, plan
from osc.types import DropIn, File, FileContent, Inline, Unit

OWN = "gardener-node-agent.service"
UNITS = "/etc/systemd/system"


def file(path: str, data: str = "x") -> File:
    """A file with inline content."""
    return File(path=path, content=FileContent(inline=Inline(data=data)))


def ids(changes: Changes, effective: Effective) -> list[str]:
    """Return the ids of the steps in order."""
    return [step.id for step in plan(changes, effective).steps]


OLD = Effective(
    (file("/old-1"), file("/old-2"), file("/a", "old")),
    (
        Unit(name="gone", content="", file_paths=("/old-1",)),
        Unit(name="os", drop_ins=(DropIn(name="d"),), file_paths=("/old-1",)),
    ),
)
NEW = Effective(
    (file("/a"), file("/b")),
    (
        Unit(name="u", content="x", file_paths=("/a",)),
        Unit(name="v", content="x", enable=False, file_paths=("/old-2",)),
        Unit(name=OWN, content="x", enable=False, file_paths=("/b",)),
    ),
)


def test_steps_follow_the_contracts_order() -> None:
    """Contract 6.2: files, units, removed units, one reload, own restart, unit commands, removed files."""
    assert ids(diff(NEW, old=OLD), NEW) == [
        "write-file:/a",
        "write-file:/b",
        "write-unit:u",
        "enable-unit:u",
        "write-unit:v",
        "disable-unit:v",
        f"write-unit:{OWN}",
        f"enable-unit:{OWN}",
        "remove-unit:gone",
        "remove-unit:os",
        "reload",
        "restart-agent",
        "command:os",
        "command:u",
        "command:v",
        "remove-file:/old-1",
        "remove-file:/old-2",
    ]


def test_w01_each_step_knows_the_journal_entry_that_it_finishes() -> None:
    """Contract 6.4, W1: a unit is done when it is written and enabled or disabled, not before."""
    steps = plan(diff(NEW, old=OLD), NEW).steps
    parts = {(step.entry.kind, type(step)): step.parts for step in steps}
    assert parts[EntryKind.UNIT_CHANGED, WriteUnit] == 2
    assert parts[EntryKind.UNIT_CHANGED, EnableUnit] == 2
    assert parts[EntryKind.UNIT_CHANGED, DisableUnit] == 2
    assert {count for (kind, _), count in parts.items() if kind is not EntryKind.UNIT_CHANGED} == {1}
    assert {step.entry for step in steps} == diff(NEW, old=OLD).entries()


def test_own_unit_is_enabled_even_if_the_osc_says_no() -> None:
    """Contract 6.6.3, Appendix C (own restart): the own unit is enabled even with `enable: false`; unset means enable (W38)."""
    effective = Effective((), (Unit(name=OWN, enable=False), Unit(name="u"), Unit(name="w", enable=True)))
    steps = plan(diff(effective, old=None), effective).steps
    enabled = {step.name: step.explicit for step in steps if isinstance(step, EnableUnit)}
    assert enabled == {OWN: True, "u": False, "w": True}


def test_own_restart_watches_the_own_unit_and_its_files() -> None:
    """Contract 1.8: the restart depends on the writes of the own unit and its files, and on bytes that they change."""
    (restart,) = (step for step in plan(diff(NEW, old=OLD), NEW).steps if isinstance(step, RestartAgent))
    assert not restart.required
    assert restart.watched == {f"write-unit:{OWN}", "write-file:/b"}
    assert restart.after == restart.watched | {"reload"}
    required = Changes(own_restart=OwnRestart.REQUIRED)
    (step,) = plan(required, NEW).steps
    assert isinstance(step, RestartAgent)
    assert (step.required, step.watched, step.after) == (True, frozenset(), frozenset())
    assert ids(required, Effective()) == ["restart-agent"]


def test_failures_block_only_what_needs_them() -> None:
    """Issue section 5: everything that does not depend on a failed item is still applied."""
    steps = plan(diff(NEW, old=OLD), NEW)
    assert steps.blocked({"write-file:/a"}) == {"command:u"}
    assert steps.blocked({"write-unit:u"}) == {"enable-unit:u", "command:u"}
    assert steps.blocked({"enable-unit:u"}) == frozenset()
    assert steps.blocked({"write-file:/b"}) == {"restart-agent"}
    assert steps.blocked({"reload"}) == {"restart-agent", "command:os", "command:u", "command:v", "remove-file:/old-1"}
    assert steps.blocked({"command:u"}) == frozenset()
    assert steps.blocked(set()) == frozenset()


def test_removed_file_waits_for_units_that_named_it() -> None:
    """Contract 6.2 step 23: a removed file waits for the commands and removals of the units that named it."""
    steps = plan(diff(NEW, old=OLD), NEW)
    assert steps.blocked({"command:os"}) == {"remove-file:/old-1"}
    assert steps.blocked({"remove-unit:gone"}) == {"remove-file:/old-1"}
    assert steps.blocked({"remove-unit:os"}) == {"command:os", "remove-file:/old-1"}


def test_w17_units_of_the_system_are_restarted_after_the_reload_if_they_exist() -> None:
    """Contract 9 W17: a unit that only had drop-ins of ours is restarted after the reload, if systemd knows it."""
    commands = {step.name: step for step in plan(diff(NEW, old=OLD), NEW).steps if isinstance(step, RunUnitCommand)}
    assert commands["os"].only_if_exists
    assert commands["os"].after == {"reload", "remove-unit:os"}
    assert not commands["u"].only_if_exists
    assert commands["v"].command == "stop"


def test_file_in_the_way_of_a_folder_is_removed_first() -> None:
    """Contract 6.5: a file whose path becomes a folder is removed before what is written below it."""
    new = Effective((file("/a/b"), file("/c")))
    steps = plan(diff(new, old=Effective((file("/a"),))), new)
    assert [step.id for step in steps.steps] == ["remove-file:/a", "write-file:/a/b", "write-file:/c", "reload"]
    assert steps.blocked({"remove-file:/a"}) == {"write-file:/a/b"}


def test_unit_in_the_way_of_a_file_is_removed_first() -> None:
    """Contract 6.6: a unit whose path becomes a file of the OSC is stopped and removed before that is written."""
    old = Effective((), (Unit(name="u", content="x"), Unit(name="w", content="x", drop_ins=(DropIn(name="d"),))))
    new = Effective((file(f"{UNITS}/u"), file(f"{UNITS}/w.d/d")))
    steps = plan(diff(new, old=old), new)
    assert [step.id for step in steps.steps] == [
        "remove-unit:u",
        "remove-unit:w",
        f"write-file:{UNITS}/u",
        f"write-file:{UNITS}/w.d/d",
        "reload",
    ]
    assert steps.blocked({"remove-unit:u"}) == {f"write-file:{UNITS}/u"}


def test_file_in_the_way_of_a_drop_in_is_removed_first() -> None:
    """Contract 6.6: a file in the place of a unit's drop-in directory is removed before the unit is written."""
    new = Effective((), (Unit(name="u", drop_ins=(DropIn(name="d"),)),))
    steps = plan(diff(new, old=Effective((file(f"{UNITS}/u.d"),))), new)
    assert next(iter(steps.steps)).id == f"remove-file:{UNITS}/u.d"
    assert "write-unit:u" in steps.blocked({f"remove-file:{UNITS}/u.d"})


def test_w17_files_that_systemd_reads_are_removed_before_the_reload() -> None:
    """Contract 9 W17: what systemd must no longer see is gone before the reload, also if it is left over."""
    old = Effective((file(f"{UNITS}/u.d/x"), file("/etc/x")))
    assert ids(diff(Effective(), old=old), Effective()) == [
        f"remove-file:{UNITS}/u.d/x",
        "reload",
        "remove-file:/etc/x",
    ]
    left = Changes(files_deleted=(file(f"{UNITS}/u.d/x"),))
    assert ids(left, Effective()) == [f"remove-file:{UNITS}/u.d/x", "reload"]


def test_reload_only_if_something_was_written_since() -> None:
    """Contract 6.2 step 18: what is left decides; commands and removals of plain files alone need no second reload."""
    effective = Effective((file("/a"),), (Unit(name="u"),))
    command = Changes(commands=(UnitCommand("u", "restart"),), files_deleted=(file("/b"),))
    assert ids(command, effective) == ["command:u", "remove-file:/b"]
    assert ids(Changes(reload=True), effective) == ["reload"]
    assert ids(Changes(files_changed=effective.files), effective) == ["write-file:/a", "reload"]
    assert ids(Changes(units_deleted=(Unit(name="x"),)), effective) == ["remove-unit:x", "reload"]
    assert ids(Changes(), effective) == []


def test_w01_resumed_unit_is_written_whole() -> None:
    """Contract 6.4 c, W1: a journal whose unit lost its drop-ins does no harm, the OSC's unit is written."""
    whole = Unit(name="u", content="x", drop_ins=(DropIn(name="d", content="1"), DropIn(name="e", content="2")))
    cut_down = UnitChange(Unit(name="u", content="x"), (), (DropIn(name="gone"), DropIn(name="")))
    (write, *_) = plan(Changes(units_changed=(cut_down,)), Effective((), (whole,))).steps
    assert isinstance(write, WriteUnit)
    assert write.unit == whole
    assert write.remove_drop_ins == ("gone",)


def test_journal_wins_where_the_osc_has_nothing() -> None:
    """Contract 6.4: an entry for something that this host's OSC does not have is taken as the journal has it."""
    changes = Changes(files_changed=(file("/a"),), units_changed=(UnitChange(Unit(name="u", content="x")),))
    steps = plan(changes, Effective()).steps
    assert isinstance(steps[0], WriteFile)
    assert steps[0].file == file("/a")
    assert isinstance(steps[1], WriteUnit)
    assert steps[1].unit.content == "x"


def test_what_the_osc_has_is_not_removed_by_an_old_journal() -> None:
    """Contract 6.4: entries that would remove what the OSC wants have no step."""
    effective = Effective((file("/a"), file(f"{UNITS}/u.d/d")), (Unit(name="u"), Unit(name="v")))
    changes = Changes(
        files_deleted=(file("/a"),),
        units_deleted=(Unit(name="u", content=""),),
        units_changed=(UnitChange(Unit(name="u"), (), (DropIn(name="d"),), file_removed=True),),
    )
    steps = plan(changes, effective).steps
    assert [step.id for step in steps] == ["write-unit:u", "enable-unit:u", "reload"]
    assert isinstance(steps[0], WriteUnit)
    assert steps[0].remove_drop_ins == ()
    assert steps[0].remove_file
    replaced = Effective((file(f"{UNITS}/u"),), (Unit(name="u"),))
    (write, *_) = plan(changes, replaced).steps
    assert isinstance(write, WriteUnit)
    assert not write.remove_file


def test_names_that_were_never_validated_are_not_used_in_paths() -> None:
    """Contract 9 W7: state of an agent that did not validate cannot remove anything outside."""
    changes = Changes(
        files_deleted=(file("../etc/passwd"), file("/etc/../x"), file("")),
        units_deleted=(
            Unit(name=".."),
            Unit(name="a/b", content=""),
            Unit(name="ok", drop_ins=(DropIn(name="../x"), DropIn(name="d"))),
        ),
        registries_deleted=("", "..", "a/b", "docker.io"),
    )
    steps = plan(changes, Effective()).steps
    assert [step.id for step in steps] == ["remove-unit:ok", "reload", "remove-registry:docker.io"]
    assert isinstance(steps[0], RemoveUnit)
    assert steps[0].drop_ins == ("d",)


def test_own_unit_is_neither_stopped_nor_removed() -> None:
    """Contract 3: also a journal that asks for it does not make the agent remove its own unit."""
    (step, _) = plan(
        Changes(units_deleted=(Unit(name=OWN, content="x", drop_ins=(DropIn(name="d"),)),)), Effective()
    ).steps
    assert isinstance(step, RemoveUnit)
    assert (step.created, step.drop_ins) == (False, ("d",))
