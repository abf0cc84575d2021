"""Arguments of the commands that both programs have, and what all commands share; nothing heavy is imported for `--help`."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

_VALIDATE = """\
exit codes:
  0  every file is fine
  1  there are problems
  2  a file cannot be read
"""


class Commands(Protocol):
    """What `ArgumentParser.add_subparsers` returns."""

    def add_parser(self, name: str, **settings: Any) -> argparse.ArgumentParser:
        """Add a command."""
        ...


def shared_settings(*flags: argparse.ArgumentParser) -> Mapping[str, Any]:
    """Return what every command is made with.

    Args:
        flags: that every command has, beside `-o`.
    """
    output = argparse.ArgumentParser(add_help=False)
    output.add_argument("-o", "--output", choices=["text", "json"], default="text", help="how to print")
    plain = argparse.RawDescriptionHelpFormatter
    return {"parents": [*flags, output], "allow_abbrev": False, "formatter_class": plain}


def add_common(commands: Commands, shared: Mapping[str, Any], *, validates: str, schemas: Sequence[str]) -> None:
    """Add `validate`, `schema` and `version`.

    Args:
        commands: of the program.
        shared: see `shared_settings`.
        validates: what `validate` checks, in words.
        schemas: what `schema` knows.
    """
    validate = commands.add_parser(
        "validate",
        help=f"check {validates}",
        description="Names every problem with its JSON path, line and column.",
        epilog=_VALIDATE,
        **shared,
    )
    validate.add_argument("files", nargs="+", metavar="FILE", help="YAML or JSON")
    schema = commands.add_parser(
        "schema", help="print a JSON Schema", description="Prints a JSON Schema (draft 2020-12).", **shared
    )
    schema.add_argument("kind", choices=schemas, help="of files that are read, or of what a command prints as JSON")
    commands.add_parser(
        "version",
        help="print versions, ours and Gardener's",
        description="Prints our version and the Gardener version that this build speaks.",
        **shared,
    )
