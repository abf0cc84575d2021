"""The commands' arguments."""

import argparse
from collections.abc import Sequence
from pathlib import Path

SCHEMAS = ("config", "status", "validate", "version")
CONFIG = Path("/etc/gardenlet/config/config.yaml")
"""Where the chart puts the configuration."""

_STATUS = """\
exit codes:
  0  it beats, or follows a leader
  1  it does not run, or fails
  2  it is starting
"""
_VALIDATE = """\
exit codes:
  0  every file is fine
  1  there are problems
  2  a file cannot be read
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command; ends the process for `--help` and, with exit code 2, for wrong usage."""
    parser = argparse.ArgumentParser(prog="gardenlet", allow_abbrev=False)
    output = argparse.ArgumentParser(add_help=False)
    output.add_argument("-o", "--output", choices=["text", "json"], default="text", help="how to print")
    shared = {
        "parents": [output],
        "allow_abbrev": False,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser(
        "status",
        help="what the gardenlet on this machine is doing",
        description="Asks the health and metrics ports of the gardenlet that runs here.",
        epilog=_STATUS,
        **shared,  # type: ignore[arg-type]
    )
    status.add_argument(
        "--config", type=Path, default=CONFIG, metavar="FILE", help=f"has the ports (default: {CONFIG})"
    )
    validate = commands.add_parser(
        "validate",
        help="check configuration files",
        description="Names every problem with its JSON path, line and column.",
        epilog=_VALIDATE,
        **shared,  # type: ignore[arg-type]
    )
    validate.add_argument("files", nargs="+", metavar="FILE", help="YAML or JSON")
    schema = commands.add_parser(
        "schema",
        help="print a JSON Schema",
        description="Prints a JSON Schema (draft 2020-12).",
        **shared,  # type: ignore[arg-type]
    )
    schema.add_argument("kind", choices=SCHEMAS, help="of the configuration, or of what a command prints as JSON")
    commands.add_parser(
        "version",
        help="print versions, ours and Gardener's",
        description="Prints our version and the Gardener version that this build speaks.",
        **shared,  # type: ignore[arg-type]
    )
    return parser.parse_args(arguments)
