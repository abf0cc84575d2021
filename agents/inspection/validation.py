"""What `validate` says of files: every problem with its path and place."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from agents.core.errors import TerminalError
from agents.core.yaml_places import Place, Places
from agents.core.yamlio import YamlError
from agents.inspection.document import document
from agents.inspection.output import Style

FINE, PROBLEMS, UNREADABLE = 0, 1, 2


class Unreadable(TerminalError):
    """A file cannot be read; fields: `path` and `problem`."""


@document
class Finding:
    """One thing that is wrong."""

    path: Annotated[str, Field(description="JSON path of the field; empty for the whole file.")]
    message: Annotated[str, Field(description="What is wrong; never quotes a value.")]
    line: Annotated[int | None, Field(description="Where the field stands, or what it is missing in; from 1.")] = None
    column: Annotated[int | None, Field(description="From 1.")] = None


@document
class CheckedFile:
    """What was found in one file."""

    file: Annotated[str, Field(description="As it was named on the command line.")]
    kind: Annotated[str, Field(description="What it was checked as: config or osc; unknown if that cannot be told.")]
    readable: Annotated[bool, Field(description="False if it could not be read at all.")]
    problems: tuple[Finding, ...]
    unknown_keys: Annotated[
        tuple[str, ...], Field(description="Keys of a configuration that this version does not know; they do no harm.")
    ] = ()


@document
class Validation:
    """What was found in all files."""

    valid: Annotated[bool, Field(description="Whether there is no problem in any file.")]
    files: tuple[CheckedFile, ...]


def gather(files: Iterable[str], check: Callable[[str, bytes], CheckedFile]) -> Validation:
    """Check files.

    Args:
        files: their names.
        check: checks one, given its name and content; may raise YamlError.
    """
    checked = tuple(_read_and_check(file, check) for file in files)
    return Validation(valid=all(one.readable and not one.problems for one in checked), files=checked)


def exit_code(found: Validation) -> int:
    """Return the exit code; what cannot be read weighs most."""
    if not all(one.readable for one in found.files):
        return UNREADABLE
    return FINE if found.valid else PROBLEMS


def lines(words: Mapping[str, str]) -> Callable[[Validation, Style], Iterator[str]]:
    """Return what writes the text, given what each kind is called.

    It yields a line for each problem, in the form that editors follow, and one for each file without.
    """

    def write(found: Validation, style: Style) -> Iterator[str]:
        for one in found.files:
            for problem in one.problems:
                place = "" if problem.line is None else f":{problem.line}:{problem.column}"
                path = f"{problem.path}: " if problem.path else ""
                yield f"{one.file}{place}: {style('error', 'red')}: {path}{problem.message}"
            for key in one.unknown_keys:
                yield f"{one.file}: {style('note', 'yellow')}: {key}: not known to this version, and ignored"
            if not one.problems:
                yield f"{one.file}: {style('valid', 'green')} {words[one.kind]}"

    return write


def read_bytes(path: Path) -> bytes:
    """Return what a file holds; a pipe is fine.

    Raises:
        Unreadable: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unreadable("cannot be read", path=str(path), problem=error.strerror or type(error).__name__) from error


def placed(content: bytes, problems: Iterable[tuple[str, str]]) -> tuple[Finding, ...]:
    """Return problems, given as path and message, with their places, in the order of the text."""
    places = Places(content)
    found = [(places.find(path) or Place(1, 1), path, message) for path, message in problems]
    return tuple(
        Finding(path=path, message=message, line=place.line, column=place.column)
        for place, path, message in sorted(found, key=lambda item: (item[0].line, item[0].column))
    )


def split(problem: str) -> tuple[str, str]:
    """Return path and message of a problem as `agents.core.config` writes it."""
    path, _, message = problem.partition(": ")
    return path, message


def _read_and_check(file: str, check: Callable[[str, bytes], CheckedFile]) -> CheckedFile:
    try:
        return check(file, read_bytes(Path(file)))
    except Unreadable as error:
        problem = Finding(path="", message=f"cannot be read: {error.fields['problem']}")
        return CheckedFile(file=file, kind="unknown", readable=False, problems=(problem,))
    except YamlError as error:
        return CheckedFile(file=file, kind="unknown", readable=True, problems=(_of_syntax(error),))


def _of_syntax(error: YamlError) -> Finding:
    fields = error.fields
    line, column = fields.get("line"), fields.get("column")
    return Finding(
        path="",
        message=f"not valid YAML: {fields.get('problem')}",
        line=line if isinstance(line, int) and line else None,
        column=column if isinstance(column, int) and column else None,
    )
