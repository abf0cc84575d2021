"""Versions of operating systems, containerd, the kubelet and Gardener itself, compared as Gardener compares them.

Source: gardener pkg/utils/version/version.go (contract 6.13), with the semver library that it uses.
"""

import re
from dataclasses import dataclass

from agents.core.errors import TerminalError

_PARTS = re.compile(r"[0-9]+(?:\.[0-9]+){0,2}")
_SUFFIX = re.compile(r"[-+~]")


class InvalidVersion(TerminalError):
    """A text is no version."""


@dataclass(frozen=True, slots=True)
class Version:
    """One to three numbers; what is missing counts as zero in comparisons, and as a wildcard in `matches`."""

    parts: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "Version":
        """Read a version; every `v` is ignored, and what follows the first `-`, `+` or `~`.

        Raises:
            InvalidVersion: it does not start with one to three numbers, or has more of them.
        """
        plain = _SUFFIX.split(text.replace("v", ""), maxsplit=1)[0].strip()
        if not _PARTS.fullmatch(plain):
            raise InvalidVersion("not a version", version=text[:100])
        try:
            return cls(tuple(int(part) for part in plain.split(".")))
        except ValueError:  # thousands of digits
            raise InvalidVersion("not a version", version=text[:100]) from None

    @property
    def complete(self) -> tuple[int, int, int]:
        """The version with all three numbers."""
        major, minor, patch, *_ = (*self.parts, 0, 0)
        return major, minor, patch

    @property
    def minor(self) -> int:
        """The second number."""
        return self.complete[1]

    def at_least(self, major: int, minor: int) -> bool:
        """Tell whether this version is this one or a newer one."""
        return self.complete[:2] >= (major, minor)


def matches(current: str, desired: str) -> bool:
    """Tell whether a version is the desired one; `1592.6` accepts every `1592.6.x`.

    Raises:
        InvalidVersion: one of them is no version.
    """
    wanted = Version.parse(desired).parts
    return Version.parse(current).complete[: len(wanted)] == wanted
