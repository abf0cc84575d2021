"""What changed between two OSCs, and what counts as changed for other reasons."""

import pytest

from osc.diff import (
    Changes,
    Dirty,
    Entry,
    EntryKind,
    OwnRestart,
    Touched,
    TouchedUnit,
    UnitChange,
    UnitCommand,
    add_dirty,
    changed_secrets,
    command_for,
    diff,
    finished,
)
from osc.merge import Effective, Runtime
from osc.types import DropIn, File, FileContent, Inline, Registry, SecretRef, Unit

OWN = "gardener-node-agent.service"


def file(path: str, data: str = "x", **fields: object) -> File:
    """A file with inline content."""
    return File(path=path, content=FileContent(inline=Inline(data=data)), **fields)  # type: ignore[arg-type]


def secret_file(path: str) -> File:
    """A file whose content is in a Secret."""
    return File(path=path, content=FileContent(secret_ref=SecretRef(name="s", data_key="k")))


def drop_in(name: str, content: str = "x") -> DropIn:
    """A drop-in."""
    return DropIn(name=name, content=content)


def test_first_run_changes_everything_and_deletes_nothing() -> None:
    """Contract 6.3.9: without last-applied all files and units are changed, each unit gets a command."""
    new = Effective((file("/a"),), (Unit(name="u", drop_ins=(drop_in("d"),)), Unit(name="v", enable=False)))
    changes = diff(new, old=None)
    assert changes == Changes(
        files_changed=new.files,
        units_changed=(UnitChange(new.units[0], (drop_in("d"),)), UnitChange(new.units[1])),
        commands=(UnitCommand("u", "restart"), UnitCommand("v", "stop")),
        reload=True,
    )


def test_equal_oscs_have_no_changes() -> None:
    """Contract 6.3: nothing changed, nothing to do, also no reload."""
    same = Effective((file("/a"),), (Unit(name="u", content="x"),))
    changes = diff(same, old=same)
    assert changes == Changes()
    assert not changes


@pytest.mark.parametrize(
    "other",
    [
        file("/a", "y"),
        file("/a", permissions=0o644),
        file("/a", host_name="h"),
        File(path="/a", content=FileContent(inline=Inline(data="eA==", encoding="b64"))),
        secret_file("/a"),
    ],
)
def test_file_is_changed_if_any_field_differs(other: File) -> None:
    """Contract 6.3.3: content, encoding, permissions, hostName and references all count."""
    assert diff(Effective((other,)), old=Effective((file("/a"),))).files_changed == (other,)


def test_file_is_deleted_if_its_path_is_gone() -> None:
    """Contract 6.3.3: deleted is what was there and is not among the new paths; its users are remembered."""
    old = Effective(
        (file("/a"), file("/b"), file("/c")),
        (Unit(name="u", file_paths=("/b", "/a")), Unit(name="v", file_paths=("/b",))),
    )
    changes = diff(Effective((file("/a"),)), old=old)
    assert [deleted.path for deleted in changes.files_deleted] == ["/b", "/c"]
    assert changes.file_users == {"/b": ("u", "v")}


def test_deleted_file_in_the_place_of_a_unit_file_is_not_removed() -> None:
    """Contract 6.3.3: a path that a unit of the new OSC writes is not deleted, though no file has it any more."""
    old = Effective((file("/etc/systemd/system/u"), file("/etc/systemd/system/u.d/d")))
    new = Effective((), (Unit(name="u", content="x", drop_ins=(drop_in("d"),)),))
    assert diff(new, old=old).files_deleted == ()


@pytest.mark.parametrize(
    "other",
    [
        Unit(name="u", content="y"),
        Unit(name="u", content="x", enable=True),
        Unit(name="u", content="x", command="start"),
        Unit(name="u", content="x", file_paths=("/a",)),
        Unit(name="u", content="x", drop_ins=(drop_in("d"),)),
    ],
)
def test_unit_is_changed_if_any_field_differs(other: Unit) -> None:
    """Contract 6.3.6: a semantic difference of the merged units changes the unit, which gets a command."""
    changes = diff(Effective((), (other,)), old=Effective((), (Unit(name="u", content="x"),)))
    assert [change.unit for change in changes.units_changed] == [other]
    assert changes.commands == (UnitCommand("u", "restart"),)


def test_unit_is_changed_with_its_files() -> None:
    """Contract 6.3.6: a changed file restarts the units that name it; a deleted one does not count."""
    units = (Unit(name="u", file_paths=("/a",)), Unit(name="v", file_paths=("/b",)))
    old = Effective((file("/a"), file("/b")), units)
    changes = diff(Effective((file("/a", "new"),), units), old=old)
    assert changes.units_changed == (UnitChange(units[0]),)
    assert [deleted.path for deleted in changes.files_deleted] == ["/b"]


def test_drop_ins_of_a_changed_unit() -> None:
    """Contract 6.3.7: deleted are names that are gone, changed are new names and new contents."""
    old = Unit(name="u", drop_ins=(drop_in("same"), drop_in("other"), drop_in("gone")))
    new = Unit(name="u", drop_ins=(drop_in("same"), drop_in("other", "y"), drop_in("new")))
    (change,) = diff(Effective((), (new,)), old=Effective((), (old,))).units_changed
    assert change == UnitChange(new, (drop_in("other", "y"), drop_in("new")), (drop_in("gone"),))


@pytest.mark.parametrize(
    ("unit", "command"),
    [
        (Unit(name="u"), "restart"),
        (Unit(name="u", command="start"), "restart"),
        (Unit(name="u", command="restart", enable=True), "restart"),
        (Unit(name="u", command="stop", enable=True), "stop"),
        (Unit(name="u", command="start", enable=False), "stop"),
        (Unit(name="u", command="unknown"), "restart"),
    ],
)
def test_command_of_a_changed_unit(unit: Unit, command: str) -> None:
    """Contract 6.3.8: `stop` if enable is false or the command is stop; `restart` in all other cases."""
    assert command_for(unit) == command


def test_deleted_unit_that_the_osc_brought_gets_no_command() -> None:
    """Contract 6.6, W17: a unit with content is removed; one without is the system's and restarted after the reload."""
    old = Effective((), (Unit(name="ours", content=""), Unit(name="theirs", drop_ins=(drop_in("d"),))))
    changes = diff(Effective(), old=old)
    assert changes.units_deleted == old.units
    assert changes.commands == (UnitCommand("theirs", "restart"),)


def test_own_unit_restarts_the_agent_instead_of_getting_a_command() -> None:
    """Contract 1.8: the own unit gets no command; bytes that change on the disk decide about the restart."""
    own = Unit(name=OWN, content="x", enable=False, file_paths=("/binary",))
    changes = diff(Effective((file("/binary"),), (own,)), old=None)
    assert changes.commands == ()
    assert changes.own_restart is OwnRestart.IF_CHANGED
    assert Entry(EntryKind.OWN_RESTART) in changes.entries()


def test_own_unit_is_never_removed() -> None:
    """Contract 3: of the own unit only our drop-ins go, when it leaves the OSC; it is neither stopped nor restarted."""
    own = Unit(name=OWN, content="x", drop_ins=(drop_in("d"),))
    changes = diff(Effective(), old=Effective((), (own,)))
    assert changes.units_deleted == (Unit(name=OWN, drop_ins=(drop_in("d"),)),)
    assert changes.commands == ()


def test_touched_items_count_as_changed() -> None:
    """Contract 6.4 b, W10: what a superseded apply touched is changed even if the new OSC equals last-applied."""
    unit = Unit(name="u", content="x", drop_ins=(drop_in("d"),))
    same = Effective((file("/a"), file("/b")), (unit, Unit(name="v")))
    touched = Touched(frozenset({"/a"}), {"u": TouchedUnit(created=True, drop_ins=frozenset({"d", "theirs"}))})
    changes = diff(same, old=same, touched=touched)
    assert [changed.path for changed in changes.files_changed] == ["/a"]
    assert changes.units_changed == (UnitChange(unit, (drop_in("d"),), (drop_in("theirs", ""),)),)


def test_items_that_only_a_superseded_osc_had_are_deleted() -> None:
    """Contract 6.4 b, W10: paths, units and drop-ins that only a superseded apply brought are removed."""
    touched = Touched(
        frozenset({"/a", "/only"}),
        {
            "made": TouchedUnit(created=True, drop_ins=frozenset({"d"})),
            "theirs": TouchedUnit(drop_ins=frozenset({"e"})),
            "known": TouchedUnit(created=True, drop_ins=frozenset({"new"})),
        },
    )
    old = Effective((file("/a"),), (Unit(name="known", drop_ins=(drop_in("old"),)),))
    changes = diff(Effective((file("/a"),)), old=old, touched=touched)
    assert [deleted.path for deleted in changes.files_deleted] == ["/only"]
    assert changes.units_deleted == (
        Unit(name="known", content="", drop_ins=(drop_in("old"), drop_in("new", ""))),
        Unit(name="made", content="", drop_ins=(drop_in("d", ""),)),
        Unit(name="theirs", drop_ins=(drop_in("e", ""),)),
    )
    assert changes.commands == (UnitCommand("theirs", "restart"),)


def test_unit_file_that_only_a_superseded_osc_brought_is_removed() -> None:
    """Contract 6.4 b: contents introduced only by a superseded OSC go; where last-applied had content it stays (6.6)."""
    touched = Touched(units={"u": TouchedUnit(created=True)})
    new = Effective((), (Unit(name="u"),))
    assert diff(new, old=new, touched=touched).units_changed[0].file_removed
    assert diff(new, old=None, touched=touched).units_changed[0].file_removed
    assert (
        not diff(new, old=Effective((), (Unit(name="u", content=""),)), touched=touched).units_changed[0].file_removed
    )
    as_file = Effective((file("/etc/systemd/system/u"),), new.units)
    assert not diff(as_file, old=new, touched=touched).units_changed[0].file_removed


def test_drop_in_that_became_a_file_is_not_removed() -> None:
    """Contract 6.6: a drop-in that left the unit and is now a file of the OSC in the same place stays."""
    old = Effective((), (Unit(name="u", drop_ins=(drop_in("d"),)),))
    new = Effective((file("/etc/systemd/system/u.d/d"),), (Unit(name="u"),))
    assert diff(new, old=old).units_changed == (UnitChange(Unit(name="u")),)


def test_files_that_go_with_a_removed_unit_are_written_again() -> None:
    """Contract 6.4 b: a file of the OSC in the place of what a removed unit had counts as changed."""
    path = "/etc/systemd/system/u"
    same = Effective((file(path),))
    changes = diff(same, old=same, touched=Touched(units={"u": TouchedUnit(created=True)}))
    assert [changed.path for changed in changes.files_changed] == [path]


def test_file_beside_a_removed_unit_of_an_unvalidated_osc_is_written_again() -> None:
    """Contract Appendix B: last-applied of an agent that did not validate may have had both, a unit and a file, there."""
    path = "/etc/systemd/system/u"
    old = Effective((file(path),), (Unit(name="u", content=""),))
    assert [changed.path for changed in diff(Effective((file(path),)), old=old).files_changed] == [path]


def test_dirty_items_count_as_changed() -> None:
    """Contract 7.11: what differs on the disk is treated as changed in the next reconcile, and only that."""
    same = Effective((file("/a"), file("/b")), (Unit(name="u"), Unit(name="v"), Unit(name="w", file_paths=("/a",))))
    changes = diff(same, old=same, dirty=Dirty(frozenset({"/a"}), frozenset({"u"})))
    assert [changed.path for changed in changes.files_changed] == ["/a"]
    assert [change.unit.name for change in changes.units_changed] == ["u", "w"]


def test_dirty_items_join_an_apply_that_is_resumed() -> None:
    """Contract 6.4: what differs is added to what is left; what is already there is not doubled."""
    new = Effective(
        (file("/a"), file("/b")),
        (
            Unit(name="u", file_paths=("/a",)),
            Unit(name="v", file_paths=("/a",)),
            Unit(name="w", drop_ins=(drop_in("d"),)),
            Unit(name=OWN),
        ),
    )
    left = Changes(
        files_changed=(new.files[1],),
        units_changed=(UnitChange(new.units[0]),),
        commands=(UnitCommand("v", "restart"),),
        own_restart=OwnRestart.REQUIRED,
    )
    changes = add_dirty(left, new, Dirty(frozenset({"/a", "/b", "/unknown"}), frozenset({"w", OWN})))
    assert [changed.path for changed in changes.files_changed] == ["/b", "/a"]
    assert [change.unit.name for change in changes.units_changed] == ["u", "v", "w", OWN]
    assert changes.units_changed[2].drop_ins_changed == (drop_in("d"),)
    assert changes.commands == (UnitCommand("v", "restart"), UnitCommand("w", "restart"))
    assert changes.own_restart is OwnRestart.REQUIRED
    assert changes.reload
    assert add_dirty(left, new, Dirty(frozenset({"/b"}))) is left


def test_changed_secrets_are_noticed() -> None:
    """Contract 9 W44: a file is changed if the Secret behind it is; content that was never known does not count."""
    new = Effective((secret_file("/a"), secret_file("/b"), secret_file("/c"), secret_file("/d"), file("/e")))
    before = {"/a": "1", "/b": "1", "/c": "1", "/e": "1"}
    now = {"/a": "1", "/b": "2", "/d": "2", "/e": "2"}
    assert changed_secrets(new, before, now) == {"/b"}


def test_changes_without_what_is_done() -> None:
    """Contract 6.4: an item is removed from its list after it has been done; the others stay."""
    changes = Changes(
        files_changed=(file("/a"), file("/b")),
        files_deleted=(file("/c"),),
        units_changed=(UnitChange(Unit(name="u")),),
        units_deleted=(Unit(name="v"),),
        commands=(UnitCommand("u", "restart"),),
        file_users={"/c": ("v",)},
        reload=True,
        own_restart=OwnRestart.REQUIRED,
    )
    assert len(changes.entries()) == 8
    left = changes.without({Entry(EntryKind.FILE_CHANGED, "/a"), Entry(EntryKind.RELOAD)})
    assert left.files_changed == (file("/b"),)
    assert not left.reload
    assert left.own_restart is OwnRestart.REQUIRED
    assert not changes.without(changes.entries())


def test_what_an_unfinished_apply_has_brought() -> None:
    """Contract 9 W14, ours: drift is looked for where nothing is left to do; of containerd only once its configuration is written."""
    here, there = Registry(upstream="here"), Registry(upstream="there")
    units = (Unit(name="u"), Unit(name="v"))
    wanted = Effective((file("/a"), file("/b")), units, Runtime(registries=(here, there)))
    left = Changes(
        files_changed=(file("/b"),), units_changed=(UnitChange(Unit(name="v")),), registries_desired=(there,)
    )
    assert finished(wanted, left) == Effective((file("/a"),), (units[0],), Runtime(registries=(here,)))
    assert finished(wanted, Changes(containerd_config=True)).runtime is None


def test_touched_adds_up() -> None:
    """Contract 6.4 b: what several unfinished applies touched is the union; an OSC can stand for its own."""
    one = Touched(frozenset({"/a"}), {"u": TouchedUnit(drop_ins=frozenset({"x"}))})
    two = Touched(frozenset({"/b"}), {"u": TouchedUnit(created=True), "v": TouchedUnit()})
    both = one | two
    assert both.paths == {"/a", "/b"}
    assert both.units == {"u": TouchedUnit(created=True, drop_ins=frozenset({"x"})), "v": TouchedUnit()}
    assert not Touched()
    assert one
    of = Touched.of(Effective((file("/a"),), (Unit(name="u", content="", drop_ins=(drop_in("d"),)),)))
    assert of == Touched(frozenset({"/a"}), {"u": TouchedUnit(created=True, drop_ins=frozenset({"d"}))})
