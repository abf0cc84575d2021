"""The version of the machine's operating system. Source: gardener pkg/apis/config/nodeagent/v1alpha1 (contract 6.13)."""

import re
from pathlib import Path

from agents.core import files
from agents.core.errors import RetriableError

_NAME = "PRETTY_NAME="
_VERSION = re.compile(r"\b\d+(?:\.\d+)*\b")


class UnknownOperatingSystem(RetriableError):
    """`/etc/os-release` is missing or names no version."""


def read_version(path: Path) -> str:
    """Return the first number, with its dots, in `PRETTY_NAME`.

    Raises:
        UnknownOperatingSystem: there is none.
    """
    try:
        # A link into /usr on most machines.
        content = files.read_mounted(path)
    except files.FileError as error:
        raise UnknownOperatingSystem("version of the operating system is unknown", path=str(path)) from error
    if content is None:
        raise UnknownOperatingSystem("version of the operating system is unknown", path=str(path))
    for line in content.decode("utf-8", "replace").splitlines():
        if line.startswith(_NAME):
            found = _VERSION.search(line.removeprefix(_NAME).strip("\"'"))
            if found:
                return found[0]
            break
    raise UnknownOperatingSystem("no version in PRETTY_NAME", path=str(path))
