"""Where a command prints: JSON if asked for, else text, with colours only on a terminal."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TextIO, TypeVar

from agents.inspection.document import to_json

Format = Literal["text", "json"]
Colour = Literal["red", "green", "yellow", "bold", "cyan"]
T = TypeVar("T")

_CODES: Mapping[Colour, str] = {"red": "31", "green": "32", "yellow": "33", "bold": "1", "cyan": "36"}


@dataclass(frozen=True, slots=True)
class Style:
    """How text is coloured, if at all."""

    colours: bool = False

    def __call__(self, text: str, colour: Colour | None) -> str:
        """Return the text in a colour."""
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if self.colours and colour else text

    @classmethod
    def of(cls, stream: TextIO, environment: Mapping[str, str]) -> "Style":
        """Return the style for a stream: colours only for a terminal that has them, and unless `NO_COLOR` is set."""
        plain = environment.get("NO_COLOR") or environment.get("TERM") == "dumb"
        return cls(colours=stream.isatty() and not plain)


def printable(text: str) -> str:
    """Return text of files or programs in one line that cannot steer a terminal."""
    return "".join(
        character if character.isprintable() or character == "\t" else repr(character)[1:-1] for character in text
    )


@dataclass(frozen=True, slots=True)
class Output:
    """The two streams of a command."""

    stream: TextIO
    errors: TextIO
    format: Format = "text"
    style: Style = Style()

    def document(self, value: T, text: Callable[[T, Style], Iterable[str]]) -> None:
        """Print a document.

        Args:
            value: what a command returned.
            text: its lines for people.
        """
        if self.format == "json":
            self.stream.write(to_json(value))
        else:
            self.stream.writelines(f"{line}\n" for line in text(value, self.style))
        self.stream.flush()

    def say(self, line: str) -> None:
        """Print what is not the result: progress and errors."""
        self.errors.write(f"{line}\n")
        self.errors.flush()
