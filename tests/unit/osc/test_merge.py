"""Effective files and units of this host."""

from osc.merge import Effective, effective, merge_units
from osc.types import DropIn, File, OperatingSystemConfig, Spec, Status, Unit


def test_files_are_spec_then_extension_without_other_hosts() -> None:
    """Contract 6.3.3, Appendix C (differences): spec files, then extension files, minus files of another host."""
    config = OperatingSystemConfig(
        spec=Spec(files=(File(path="/a"), File(path="/b", host_name="other"), File(path="/c", host_name="me"))),
        status=Status(extension_files=(File(path="/d"), File(path="/e", host_name=""))),
    )
    assert [file.path for file in effective(config, hostname="me").files] == ["/a", "/c", "/d"]


def test_one_path_for_several_hosts_is_chosen_by_name() -> None:
    """Contract 5.4, Appendix C (differences): a path may occur once per host; each host gets its own."""
    files = (File(path="/a", host_name="one", permissions=1), File(path="/a", host_name="two", permissions=2))
    config = OperatingSystemConfig(spec=Spec(files=files))
    assert [file.permissions for file in effective(config, hostname="two").files] == [2]
    assert effective(config, hostname="three").files == ()


def test_units_are_merged_by_name() -> None:
    """Contract 6.3.4: later enable, command and content win if set; drop-ins and filePaths are appended."""
    first = Unit(
        name="a",
        enable=True,
        command="start",
        content="1",
        drop_ins=(DropIn(name="x", content="1"),),
        file_paths=("/1",),
    )
    second = Unit(name="a", enable=False, drop_ins=(DropIn(name="y", content="2"),), file_paths=("/2",))
    third = Unit(name="a", command="stop", content="")
    config = OperatingSystemConfig(
        spec=Spec(units=(first, Unit(name="b"))), status=Status(extension_units=(second, Unit(name="c"), third))
    )
    merged = effective(config, hostname="me").units
    assert [unit.name for unit in merged] == ["a", "b", "c"]
    assert merged[0] == Unit(
        name="a",
        enable=False,
        command="stop",
        content="",
        drop_ins=(DropIn(name="x", content="1"), DropIn(name="y", content="2")),
        file_paths=("/1", "/2"),
    )


def test_last_of_equally_named_drop_ins_wins() -> None:
    """Contract 6.3.4: of drop-ins with one name the last one is what the disk shows, within one unit and across two."""
    twice = Unit(name="a", drop_ins=(DropIn(name="x", content="1"), DropIn(name="x", content="2")))
    assert merge_units([twice])[0].drop_ins == (DropIn(name="x", content="2"),)
    third = Unit(name="a", drop_ins=(DropIn(name="x", content="3"),))
    assert merge_units([twice, third])[0].drop_ins == (DropIn(name="x", content="3"),)


def test_written_paths_are_those_of_files_units_and_drop_ins() -> None:
    """Contract 3: everything that an OSC puts on the disk is known by path."""
    units = (Unit(name="u", content="", drop_ins=(DropIn(name="d"),)),)
    assert Effective((File(path="/a"),), units).written_paths() == {
        "/a",
        "/etc/systemd/system/u",
        "/etc/systemd/system/u.d/d",
    }
