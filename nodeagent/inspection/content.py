"""What of a file may be shown, and how it differs.

An OperatingSystemConfig brings secrets inline, and nothing tells them from other files. So content is shown only where everybody on
the machine may read it, before and after; of everything else only size and the beginning of the SHA-256.
"""

import difflib
import hashlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from agents.core import files
from agents.inspection.document import document

_READ_BY_OTHERS = stat.S_IROTH
_ENTERED_BY_OTHERS = stat.S_IXOTH
_DIGEST_LENGTH = 12
_MOST_BYTES = 256 * 1024
"""Of a file whose difference is shown."""


@document
class Content:
    """A file without its content."""

    size: Annotated[int, Field(description="In bytes.")]
    sha256: Annotated[str, Field(description="The first 12 hexadecimal digits.")]
    mode: Annotated[str, Field(description="Permission bits, octal.")]


@dataclass(frozen=True, slots=True)
class Version:
    """A file before or after a change; without content if it is not there.

    Attributes:
        content: all bytes.
        mode: permission bits.
        public: whether everybody on the machine may read it.
        problem: why it cannot be read, for example that it is a directory.
    """

    content: bytes | None = field(default=None, repr=False)
    mode: int = 0
    public: bool = True
    problem: str = ""

    def describe(self) -> Content | None:
        """Return what may always be shown, None if there is no file."""
        if self.content is None:
            return None
        digest = hashlib.sha256(self.content).hexdigest()[:_DIGEST_LENGTH]
        return Content(size=len(self.content), sha256=digest, mode=f"{self.mode:04o}")


ABSENT = Version()


def current(path: Path, root: Path) -> Version:
    """Return what is at a path now; blocking, never raises."""
    try:
        content = files.read_optional(path)
        if content is None:
            return ABSENT
        mode = stat.S_IMODE(path.lstat().st_mode)
    except files.FileError as error:
        return Version(public=False, problem=str(error.fields.get("problem") or error.message))
    except OSError as error:
        return Version(public=False, problem=error.strerror or type(error).__name__)
    return Version(content, mode, public=bool(mode & _READ_BY_OTHERS) and _reachable(path, root))


def wanted(path: Path, root: Path, content: bytes, mode: int) -> Version:
    """Return what is to be at a path; blocking."""
    return Version(content, mode, public=bool(mode & _READ_BY_OTHERS) and _reachable(path, root))


def difference(path: str, before: Version, after: Version) -> str | None:
    """Return a unified diff, None if it may not be shown, is no text, or too long."""
    if not (before.public and after.public) or before.problem:
        return None
    old, new = _text(before), _text(after)
    if old is None or new is None:
        return None
    name_before, name_after = (os.devnull if version.content is None else path for version in (before, after))
    return "".join(_with_line_end(line) for line in difflib.unified_diff(old, new, name_before, name_after))


def _text(version: Version) -> list[str] | None:
    content = version.content or b""
    if len(content) > _MOST_BYTES or b"\0" in content:
        return None
    try:
        return content.decode().splitlines(keepends=True)
    except UnicodeDecodeError:
        return None


def _with_line_end(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _reachable(path: Path, root: Path) -> bool:
    """Tell whether everybody may enter the folders above a path that exist; the others will be created for everybody."""
    for folder in path.parents:
        if folder == root:
            return True
        try:
            if not folder.stat().st_mode & _ENTERED_BY_OTHERS:
                return False
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True
