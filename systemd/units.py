"""Names of units: where their files are, what systemd calls their objects, which names can be part of a path."""

import re
from pathlib import Path
from string import ascii_letters, digits

from systemd.errors import InvalidUnit

UNIT_DIRECTORY = Path("etc/systemd/system")
"""Where we write, below the machine's root."""

RUNTIME_DIRECTORY = Path("run/systemd/system")
"""What does not outlive a boot, for example `systemctl mask --runtime`."""

SEARCH_DIRECTORIES = (UNIT_DIRECTORY, Path("usr/lib/systemd/system"), Path("lib/systemd/system"))
"""Where unit files are looked up, first hit wins (contract 7.11)."""

SUFFIXES = frozenset(
    f".{kind}"
    for kind in (
        "automount",
        "device",
        "mount",
        "path",
        "scope",
        "service",
        "slice",
        "socket",
        "swap",
        "target",
        "timer",
    )
)
"""What a unit's name ends in; systemd.unit(5)."""

_LONGEST_NAME_BYTES = 255
_NAME = re.compile(r"[A-Za-z0-9:_.\\@-]+")
_PLAIN = frozenset(ascii_letters + digits)
_OBJECT_PREFIX = "/org/freedesktop/systemd1/unit/"


def check_name(name: str) -> None:
    """Refuse what is not one part of a path.

    Raises:
        InvalidUnit: empty, `.`, `..`, too long, or with a slash or a NUL byte.
    """
    too_long = len(name.encode("utf-8", "surrogatepass")) > _LONGEST_NAME_BYTES
    if name in ("", ".", "..") or "/" in name or "\0" in name or too_long:
        raise InvalidUnit("name cannot be part of a path", {"unit": name[:_LONGEST_NAME_BYTES]})


def is_loadable(name: str) -> bool:
    """Tell whether systemd would look for a unit of this name: it is well formed, and no template without an instance."""
    stem, dot, kind = name.rpartition(".")
    well_formed = stem != "" and f"{dot}{kind}" in SUFFIXES and _NAME.fullmatch(name) is not None
    return well_formed and len(name) <= _LONGEST_NAME_BYTES and not stem.endswith("@") and not stem.startswith("@")


def unit_path(name: str, *, root: Path) -> Path:
    """Return where the unit's file is written."""
    check_name(name)
    return root / UNIT_DIRECTORY / name


def drop_in_directory(name: str, *, root: Path) -> Path:
    """Return where the unit's drop-ins are written."""
    check_name(name)
    return root / UNIT_DIRECTORY / f"{name}.d"


def drop_in_path(unit: str, name: str, *, root: Path) -> Path:
    """Return where a drop-in is written."""
    check_name(name)
    return drop_in_directory(unit, root=root) / name


def find_fragment(name: str, *, root: Path) -> Path | None:
    """Return the unit's file, ours or the operating system's, without asking systemd."""
    check_name(name)
    candidates = (root / directory / name for directory in SEARCH_DIRECTORIES)
    return next((path for path in candidates if path.is_file()), None)


def object_path(name: str) -> str:
    """Return the D-Bus object path of a unit.

    Source: systemd src/basic/unit-def.c, unit_dbus_path_from_name; src/libsystemd/sd-bus, bus_label_escape.
    """
    escaped = "".join(
        chr(byte) if chr(byte) in _PLAIN and not (position == 0 and chr(byte) in digits) else f"_{byte:02x}"
        for position, byte in enumerate(name.encode())
    )
    return _OBJECT_PREFIX + (escaped or "_")
