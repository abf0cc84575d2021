"""Compare what was applied with what is on the disk; reports, and leaves repairing to the next reconcile.

Source: gardener pkg/nodeagent/bootstrappers/file_consistency_bootstrapper.go (contract 7.11). Unlike there, drop-ins and
filePaths are really looked at, extension units and files and host names too (W13).
"""

import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agents.core import comparing, files
from osc.codec import MAX_FILE_BYTES, InvalidContent, decode_file_content
from osc.merge import Effective
from osc.types import File, Inline, Unit
from systemd.units import drop_in_path, find_fragment, unit_path

_NO_DIGESTS: Mapping[str, str] = {}
_ENCODINGS = {"": "", "plain": "", "b64": "b64", "base64": "b64"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between what was applied and what is there."""

    reason: str
    """Reason of the event, for example `FileMismatch`."""
    message: str
    place: str | None = None
    """The file that differs where that is a unit's own: its unit file, or a drop-in."""
    path: str | None = None
    """Managed file to be written again, if that would help."""
    unit: str | None = None
    """Managed unit whose files are to be written again, if that would help."""
    registry: str | None = None
    """Upstream whose `hosts.toml` is to be written again."""
    changed_at: float | None = None
    """When the file in question was changed last, in seconds since the epoch; of a missing one, when its folder was."""
    definition: bool = False
    """Whether it concerns what a running unit was started with, or only how the next start would go."""

    @property
    def item(self) -> str:
        """What differs: a file's path, or the reason with what it is about."""
        return self.place or self.path or f"{self.reason} {self.unit or self.registry or self.message}"


def inspect(
    effective: Effective,
    *,
    loaded_units: Collection[str] | None,
    with_modes: bool = False,
    secret_digests: Mapping[str, str] = _NO_DIGESTS,
    root: Path = Path("/"),
) -> Iterator[Finding]:
    """Yield each difference.

    Args:
        effective: what was applied, of this host.
        loaded_units: names of the units that systemd has loaded; None if it could not be asked.
        with_modes: look at modes and owners of files, and at files that are to be empty, too.
        secret_digests: by path, of what was written out of Secrets; the content of others that come from there is not known.
        root: where the machine's file system starts.
    """
    for file in effective.files:
        # The check at the start leaves empty files alone, as Gardener's agent does; the look for drift does not.
        if file.content.inline is not None and (file.content.inline.data or with_modes):
            yield from _inspect_file(file, file.content.inline, root)
        elif file.content.secret_ref is not None and file.path in secret_digests:
            yield from _inspect_secret(file, secret_digests[file.path], root)
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

    def look(place: Path) -> str | None:
        same = comparing.holds(place, expected)
        if same or same is None:
            return None if same is None else ""
        return f": expected SHA-256 {_digest(expected)}, found {comparing.described(place)}"

    yield from _compare(file, root, look)


def _inspect_secret(file: File, expected: str, root: Path) -> Iterator[Finding]:
    def look(place: Path) -> str | None:
        with comparing.opened(place) as found:
            if found is None:
                return None
        # Without the digests: what is short is guessed from them, and events are read by many.
        return "" if comparing.described(place) == expected else " from what its Secret held"

    yield from _compare(file, root, look)


def _compare(file: File, root: Path, look: Callable[[Path], str | None]) -> Iterator[Finding]:
    """Look at the content of a file; `look` says in words how it is another one, nothing if it is not, None if it is missing."""
    place = root / file.path.lstrip("/")
    try:
        words = look(place)
    except files.FileError as error:
        problem = error.fields.get("problem") or error.message
        yield Finding("FileReadError", f"file {file.path} cannot be read: {problem}", path=file.path)
        return
    if words is None:
        yield _missing(file, root)
    elif words:
        message = f"file {file.path} differs{words}"
        yield Finding("FileMismatch", message, path=file.path, changed_at=changed_at(place), definition=True)


def _inspect_status(file: File, root: Path) -> Iterator[Finding]:
    """Look at mode and owner, and whether a file from elsewhere than the OSC itself is there at all."""
    try:
        found = (root / file.path.lstrip("/")).lstat()
    except OSError:
        if file.content.inline is None:
            yield _missing(file, root)
        return
    if not stat.S_ISREG(found.st_mode):
        return  # reading it has failed already, or it cannot be replaced
    if stat.S_IMODE(found.st_mode) != file.mode:
        message = f"file {file.path} has mode {stat.S_IMODE(found.st_mode):04o}, expected {file.mode:04o}"
        yield Finding("FileModeMismatch", message, path=file.path)
    if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
        message = f"file {file.path} belongs to {found.st_uid}:{found.st_gid}"
        yield Finding("FileOwnerMismatch", message, path=file.path)


def _missing(file: File, root: Path) -> Finding:
    gone = changed_at(root / file.path.lstrip("/"))
    return Finding("FileMissing", f"file {file.path} is missing", path=file.path, changed_at=gone, definition=True)


def changed_at(path: Path) -> float | None:
    """Return when a file was changed last, in seconds since the epoch; of a missing one, when its folder was; blocking."""
    try:
        return path.lstat().st_ctime
    except FileNotFoundError:
        return _gone_at(path)
    except OSError:
        return None


def _gone_at(path: Path) -> float | None:
    """Return the latest moment at which a missing file can have gone: something changed in its folder."""
    for folder in path.parents:
        try:
            return folder.stat().st_mtime
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def _inspect_unit(unit: Unit, loaded_units: Collection[str] | None, root: Path) -> Iterator[Finding]:
    fragment = find_fragment(unit.name, root=root)
    same = _holds(fragment, unit.content) if fragment is not None else None
    if fragment is None or same is None:
        ours = unit.name if unit.content else None
        yield Finding("UnitFileMissing", f"unit file of {unit.name} is missing", unit=ours, place=unit.path)
        return
    if not same:
        ours_path = unit_path(unit.name, root=root)
        # Ours, also where it is gone: the operating system's that is in effect instead may be old.
        changed = changed_at(ours_path)
        message = f"unit file of {unit.name} differs"
        yield Finding("UnitMismatch", message, unit=unit.name, place=unit.path, changed_at=changed, definition=True)
    for drop_in in unit.drop_ins:
        where = drop_in_path(unit.name, drop_in.name, root=root)
        if same := _holds(where, drop_in.content):
            continue
        reason, state = ("DropInMissing", "is missing") if same is None else ("DropInMismatch", "differs")
        yield Finding(
            reason,
            f"drop-in {drop_in.name} of {unit.name} {state}",
            unit=unit.name,
            place=f"{unit.drop_in_directory}/{drop_in.name}",
            changed_at=changed_at(where),
            definition=True,
        )
    if unit.enable is not None and loaded_units is not None and (installable := _installable(fragment)) is not None:
        enabled = unit.name in loaded_units or not installable
        if enabled != unit.enable:
            wanted, seen = ("enabled", "is not") if unit.enable else ("disabled", "is enabled")
            yield Finding("UnitEnableMismatch", f"unit {unit.name} should be {wanted} and {seen}")
    for path in unit.file_paths:
        if not os.path.exists(root / path.lstrip("/")):  # noqa: PTH110 - never raises: a disk that fails is no reason to stop looking
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
