"""What is wrong with an OperatingSystemConfig, as values with JSON paths.

::

    TerminalError
    └── InvalidOSC              carries every problem; the next version of the Secret is a new attempt
        └── MissingPayload      the Secret has neither of the two data keys
"""

from collections.abc import Iterable
from dataclasses import dataclass

from agents.core.errors import TerminalError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, with the JSON path of the field, for example `spec.files[3].path`."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class InvalidOSC(TerminalError):
    """The OperatingSystemConfig cannot be applied as it is; nothing on the machine has been changed."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("invalid operating system config", problems="; ".join(map(str, self.problems)))


class MissingPayload(InvalidOSC):
    """The Secret holds no OperatingSystemConfig."""
