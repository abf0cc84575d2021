"""Names and places of units."""

from pathlib import Path

import pytest

from systemd.errors import InvalidUnit
from systemd.units import (
    check_name,
    drop_in_directory,
    drop_in_path,
    find_fragment,
    is_loadable,
    object_path,
    unit_path,
)


def test_places_of_a_unit(tmp_path: Path) -> None:
    """Contract 3: unit files and drop-ins lie in /etc/systemd/system."""
    assert unit_path("a.service", root=tmp_path) == tmp_path / "etc/systemd/system/a.service"
    assert drop_in_directory("a.service", root=tmp_path) == tmp_path / "etc/systemd/system/a.service.d"
    assert drop_in_path("a.service", "b", root=tmp_path) == tmp_path / "etc/systemd/system/a.service.d/b"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "nul\0", "x" * 256, "ü" * 128])
def test_names_that_leave_the_directory_are_refused(name: str, tmp_path: Path) -> None:
    """Contract 5.4, W7: names that are not one part of a path never become one."""
    with pytest.raises(InvalidUnit):
        check_name(name)
    for place in (unit_path, drop_in_directory, find_fragment):
        with pytest.raises(InvalidUnit):
            place(name, root=tmp_path)
    with pytest.raises(InvalidUnit):
        drop_in_path("a.service", name, root=tmp_path)


def test_fragment_is_the_first_hit(tmp_path: Path) -> None:
    """Contract 7.11: /etc/systemd/system, then /usr/lib/systemd/system, then /lib/systemd/system."""
    assert find_fragment("a.service", root=tmp_path) is None
    for folder in ("lib/systemd/system", "usr/lib/systemd/system", "etc/systemd/system"):
        path = tmp_path / folder / "a.service"
        path.parent.mkdir(parents=True)
        path.write_text("")
        assert find_fragment("a.service", root=tmp_path) == path


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("dbus.service", "dbus_2eservice"),
        ("1-a_b@c.service", "_31_2da_5fb_40c_2eservice"),
        ("ü", "_c3_bc"),
        ("", "_"),
    ],
)
def test_object_path_is_escaped_as_systemd_does(name: str, escaped: str) -> None:
    """Contract 6.7: unit objects are addressed by their escaped name, a digit in front too."""
    assert object_path(name) == f"/org/freedesktop/systemd1/unit/{escaped}"


@pytest.mark.parametrize(
    ("name", "loadable"),
    [
        ("a.service", True),
        ("a@b.service", True),
        ("-.mount", True),
        ("var-lib\\x2dx.mount", True),
        ("a@.service", False),
        ("@a.service", False),
        ("a.unknown", False),
        (".service", False),
        ("service", False),
        ("a b.service", False),
        ("ä.service", False),
        ("x" * 250 + ".service", False),
    ],
)
def test_names_that_can_have_a_state(name: str, loadable: bool) -> None:
    """Contract 7.8: one name that systemd refuses must not spoil the call for all the others."""
    assert is_loadable(name) is loadable
