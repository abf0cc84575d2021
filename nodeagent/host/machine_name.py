"""The name under which infrastructure knows this machine; part of our identity (contract 1.4 step 7, 4.1)."""

from pathlib import Path

from agents.core import files
from agents.core.errors import FatalError

USER_PREFIX = "gardener.cloud:node-agent:machine:"
GROUP = "gardener.cloud:node-agents"


class MachineNameMissing(FatalError):
    """The file is missing or its first line is empty; user data has to bring it."""


def read_machine_name(path: Path) -> str:
    """Return the first line, blanks and all.

    Raises:
        MachineNameMissing: there is none.
    """
    content = files.read_optional(path)
    name = (content or b"").decode("utf-8", "replace").split("\n", 1)[0]
    if not name:
        raise MachineNameMissing("machine name is missing; user data has to write it", path=str(path))
    return name
