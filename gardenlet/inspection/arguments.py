"""The commands' arguments."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from agents.inspection.arguments import add_common, shared_settings

SCHEMAS = ("config", "status", "validate", "version")
CONFIG = Path("/etc/gardenlet/config/config.yaml")
"""Where the chart puts the configuration."""

_STATUS = """\
exit codes:
  0  it beats, or follows a leader
  1  it does not run, or fails
  2  it is starting
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command; ends the process for `--help` and, with exit code 2, for wrong usage."""
    parser = argparse.ArgumentParser(prog="gardenlet", allow_abbrev=False)
    shared = shared_settings()
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser(
        "status",
        help="what the gardenlet on this machine is doing",
        description="Asks the health and metrics ports of the gardenlet that runs here.",
        epilog=_STATUS,
        **shared,
    )
    status.add_argument(
        "--config", type=Path, default=CONFIG, metavar="FILE", help=f"has the ports (default: {CONFIG})"
    )
    add_common(commands, shared, validates="configuration files", schemas=SCHEMAS)
    return parser.parse_args(arguments)
