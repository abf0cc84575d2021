"""Compare what was applied with what is on the disk; reports, and leaves repairing to the next reconcile.

Source: gardener pkg/nodeagent/bootstrappers/file_consistency_bootstrapper.go (contract 7.11). Unlike there, drop-ins and
filePaths are really looked at, extension units and files and host names too (W13).
"""

import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from agents.core import comparing, files
from osc.codec import MAX_FILE_BYTES, InvalidContent, decode_file_content
from osc.merge import Effective
from osc.types import File, Inline, Unit
from systemd.units import drop_in_path, find_fragment

_ENCODINGS = {"": "", "plain": "", "b64": "b64", "base64": "b64"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between what was applied and what is there."""

    reason: str
    """Reason of the event, for example `FileMismatch`."""
    message: str
    path: str | None = None
    """Managed file to be written again, if that would help."""
    unit: str | None = None
    """Managed unit whose files are to be written again, if that would help."""
    registry: str | None = None
    """Upstream whose `hosts.toml` is to be written again."""
    changed_at: float | None = None
    """When the file in question was changed last, in seconds since the epoch; None if it is missing."""
    definition: bool = False
    """Whether it concerns what a running unit was started with, or only how the next start would go."""


def inspect(
    effective: Effective, *, loaded_units: Collection[str] | None, with_modes: bool = False, root: Path = Path("/")
) -> Iterator[Finding]:
    """Yield each difference.

    Args:
        effective: what was applied, of this host.
        loaded_units: names of the units that systemd has loaded; None if it could not be asked.
        with_modes: look at modes and owners of files too.
        root: where the machine's file system starts.
    """
    for file in effective.files:
        if file.content.inline is not None and file.content.inline.data:
            yield from _inspect_file(file, file.content.inline, root)
        if with_modes:
            yield from _inspect_status(file, root)
    for unit in effective.units:
        yield from _inspect_unit(unit, loaded_units, root)


def _inspect_file(file: File, inline: Inline, root: Path) -> Iterator[Finding]:
    encoding = _ENCODINGS.get(inline.encoding)
    if encoding is None:
        yield Finding("FileUnsupportedEncoding", f"file {file.path} has the unknown encoding {inline.encoding}")
        return
    try:
        expected = decode_file_content(Inline(encoding=encoding, data=inline.data))
    except InvalidContent as error:
        yield Finding("FileDecodeError", f"content of file {file.path} cannot be decoded: {error}")
        return
    place = root / file.path.lstrip("/")
    try:
        same = comparing.holds(place, expected)
        found = comparing.described(place) if same is False else ""
    except files.FileError as error:
        problem = error.fields.get("problem") or error.message
        yield Finding("FileReadError", f"file {file.path} cannot be read: {problem}", path=file.path)
        return
    if same is None:
        yield Finding("FileMissing", f"file {file.path} is missing", path=file.path)
    elif not same:
        message = f"file {file.path} differs: expected SHA-256 {_digest(expected)}, found {found}"
        yield Finding("FileMismatch", message, path=file.path, changed_at=_changed_at(place), definition=True)


def _inspect_status(file: File, root: Path) -> Iterator[Finding]:
    """Look at mode and owner, and whether a file from elsewhere than the OSC itself is there at all."""
    try:
        found = (root / file.path.lstrip("/")).lstat()
    except OSError:
        if file.content.inline is None:
            yield Finding("FileMissing", f"file {file.path} is missing", path=file.path)
        return
    if not stat.S_ISREG(found.st_mode):
        return  # reading it has failed already, or it cannot be replaced
    if stat.S_IMODE(found.st_mode) != file.mode:
        message = f"file {file.path} has mode {stat.S_IMODE(found.st_mode):04o}, expected {file.mode:04o}"
        yield Finding("FileModeMismatch", message, path=file.path)
    if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
        message = f"file {file.path} belongs to {found.st_uid}:{found.st_gid}"
        yield Finding("FileOwnerMismatch", message, path=file.path)


def _changed_at(path: Path) -> float | None:
    try:
        return path.lstat().st_ctime
    except OSError:
        return None


def _inspect_unit(unit: Unit, loaded_units: Collection[str] | None, root: Path) -> Iterator[Finding]:
    fragment = find_fragment(unit.name, root=root)
    same = _holds(fragment, unit.content) if fragment is not None else None
    if fragment is None or same is None:
        yield Finding(
            "UnitFileMissing", f"unit file of {unit.name} is missing", unit=unit.name if unit.content else None
        )
        return
    if not same:
        changed = _changed_at(fragment)
        message = f"unit file of {unit.name} differs"
        yield Finding("UnitMismatch", message, unit=unit.name, changed_at=changed, definition=True)
    for drop_in in unit.drop_ins:
        place = drop_in_path(unit.name, drop_in.name, root=root)
        if (same := _holds(place, drop_in.content)) is None:
            yield Finding("DropInMissing", f"drop-in {drop_in.name} of {unit.name} is missing", unit=unit.name)
        elif not same:
            message = f"drop-in {drop_in.name} of {unit.name} differs"
            yield Finding("DropInMismatch", message, unit=unit.name, changed_at=_changed_at(place), definition=True)
    if unit.enable is not None and loaded_units is not None and (installable := _installable(fragment)) is not None:
        enabled = unit.name in loaded_units or not installable
        if enabled != unit.enable:
            wanted, seen = ("enabled", "is not") if unit.enable else ("disabled", "is enabled")
            yield Finding("UnitEnableMismatch", f"unit {unit.name} should be {wanted} and {seen}")
    for path in unit.file_paths:
        if not (root / path.lstrip("/")).exists():
            yield Finding("DependencyMissing", f"file {path} of unit {unit.name} is missing", path=path)


def _holds(path: Path, text: str | None) -> bool | None:
    """Tell whether a unit's file is as it should be, anything if that is not said; None if it is missing or cannot be read."""
    try:
        # Unit files may be links: of an alias, or to /usr.
        place = path.resolve()
        if text is not None:
            return comparing.holds(place, text.encode())
        with comparing.opened(place) as file:
            return None if file is None else True
    except (files.FileError, OSError):
        return None


def _installable(fragment: Path) -> bool | None:
    """Tell whether a unit can be enabled, None if that cannot be read."""
    try:
        content = files.read_optional(fragment.resolve(), limit=MAX_FILE_BYTES)
    except (files.FileError, OSError):
        return None
    return None if content is None else b"[Install]" in content


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
