"""The commands' arguments; nothing heavy is imported for a mistake or for `--help`."""

import argparse
from typing import Any, Protocol

SCHEMAS = ("config", "osc", "status", "plan", "diagnose", "validate", "version")
WAIT_SECONDS = 600.0

_STATUS = """\
exit codes:
  0  done: what is desired is applied, and everything is well
  1  failed, or it cannot be told
  2  in progress or degraded
"""
_PLAN = """\
Content is shown only of files that everybody on the machine may read; of others size and the beginning of the SHA-256.

exit codes:
  0  the plan was made, also if it is empty
  1  the OperatingSystemConfig cannot be read or applied
"""
_DIAGNOSE = """\
Looks at config, time, dns, tcp, tls, credentials, authorization, secret, validation, disk, systemd, containerd, kubelet.
The bundle has logs, state and unit states; credentials and content of files are left out.

exit codes:
  0  nothing is broken
  1  something is broken
"""
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


def add(commands: Commands, flags: argparse.ArgumentParser) -> None:
    """Add the commands to the command line.

    Args:
        commands: of the program.
        flags: that every command has.
    """
    output = argparse.ArgumentParser(add_help=False)
    output.add_argument("-o", "--output", choices=["text", "json"], default="text", help="how to print")
    plain = argparse.RawDescriptionHelpFormatter
    shared: dict[str, Any] = {"parents": [flags, output], "allow_abbrev": False, "formatter_class": plain}
    status = commands.add_parser(
        "status",
        help="what is desired, what is applied, what is left or fails",
        description="Shows how far this machine is, also while the agent or the API server is down.",
        epilog=_STATUS,
        **shared,
    )
    status.add_argument("--wait", action="store_true", help="follow until it is done or failed")
    status.add_argument(
        "--timeout", type=_seconds, default=WAIT_SECONDS, metavar="SECONDS", help="longest wait (default: 600)"
    )
    plan = commands.add_parser(
        "plan",
        help="what an OperatingSystemConfig would change here",
        description="Shows differences, units to be restarted and why, and what that disrupts; changes nothing.",
        epilog=_PLAN,
        **shared,
    )
    plan.add_argument(
        "--osc", metavar="FILE", help="an OperatingSystemConfig, or a Secret with one (default: the one desired last)"
    )
    diagnose = commands.add_parser(
        "diagnose",
        help="one cause and one next step of what is broken",
        description="Follows the chain from the configuration to the kubelet to its first broken link.",
        epilog=_DIAGNOSE,
        **shared,
    )
    diagnose.add_argument("--bundle", metavar="FILE", help="also write a tar.gz with what somebody elsewhere needs")
    validate = commands.add_parser(
        "validate",
        help="check configuration files and OperatingSystemConfigs",
        description="Names every problem with its JSON path, line and column.",
        epilog=_VALIDATE,
        **shared,
    )
    validate.add_argument("files", nargs="+", metavar="FILE", help="YAML or JSON")
    schema = commands.add_parser(
        "schema", help="print a JSON Schema", description="Prints a JSON Schema (draft 2020-12).", **shared
    )
    schema.add_argument("kind", choices=SCHEMAS, help="of files that are read, or of what a command prints as JSON")
    commands.add_parser(
        "version",
        help="print versions, ours and Gardener's",
        description="Prints our version and the Gardener version that this build speaks.",
        **shared,
    )


def _seconds(text: str) -> float:
    seconds = float(text.removesuffix("s"))
    if not 0 <= seconds < float("inf"):
        raise ValueError("out of range")
    return seconds
