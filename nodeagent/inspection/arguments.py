"""The commands' arguments; nothing heavy is imported for a mistake or for `--help`."""

import argparse
from collections.abc import Mapping
from typing import Any

from agents.inspection.arguments import Commands, add_common, shared_settings

SCHEMAS = ("config", "osc", "status", "apply", "plan", "diagnose", "validate", "version")
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
_APPLY = """\
Runs the whole agent until what the cluster wants of this machine is applied, heartbeat included; the service must be stopped. What fails
is tried again, until the next try would be more than 10 s away. A result is printed on stdout, progress on stderr.

exit codes:
  0  applied
  1  failed, or it cannot be told
  2  in progress: the time was over, it was stopped, or the agent itself changed
"""
_DIAGNOSE = """\
Looks at config, time, dns, tcp, tls, credentials, authorization, secret, validation, disk, systemd, containerd, kubelet.
The bundle has logs, state and unit states; credentials and content of files are left out.

exit codes:
  0  nothing is broken
  1  something is broken
"""


def add(commands: Commands, flags: argparse.ArgumentParser) -> None:
    """Add the commands to the command line.

    Args:
        commands: of the program.
        flags: that every command has.
    """
    shared = shared_settings(flags)
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
    _add_apply(commands, shared)
    diagnose = commands.add_parser(
        "diagnose",
        help="one cause and one next step of what is broken",
        description="Follows the chain from the configuration to the kubelet to its first broken link.",
        epilog=_DIAGNOSE,
        **shared,
    )
    diagnose.add_argument("--bundle", metavar="FILE", help="also write a tar.gz with what somebody elsewhere needs")
    add_common(commands, shared, validates="configuration files and OperatingSystemConfigs", schemas=SCHEMAS)


def _add_apply(commands: Commands, shared: Mapping[str, Any]) -> None:
    apply = commands.add_parser(
        "apply",
        help="apply what the cluster wants of this machine in the foreground, with progress",
        description="Does once what the service does all the time.",
        epilog=_APPLY,
        **shared,
    )
    apply.add_argument("--once", action="store_true", required=True, help="end when it is applied; must be given")
    apply.add_argument(
        "--timeout", type=_seconds, default=WAIT_SECONDS, metavar="SECONDS", help="longest run (default: 600)"
    )
    apply.add_argument(
        "-v", "--verbose", action="store_true", help="log as the service does, instead of showing progress"
    )


def _seconds(text: str) -> float:
    seconds = float(text.removesuffix("s"))
    if not 0 <= seconds < float("inf"):
        raise ValueError("out of range")
    return seconds
