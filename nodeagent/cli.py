"""Command line of gardener-node-agent: reads flags, environment and configuration; nothing else reads them.

Source: gardener cmd/gardener-node-agent/app (contract 1.2, 1.3, 1.10).
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from agents.core import logging
from agents.core.config import ConfigError
from agents.core.errors import AgentError
from agents.core.generations import Generations
from nodeagent import config, config_history
from nodeagent.config_history import Note
from nodeagent.host.hostname import read_hostname
from nodeagent.paths import Paths
from nodeagent.version import GARDENER_VERSION, VERSION

_DESCRIPTION = """\
Makes this machine match its OperatingSystemConfig: writes files, manages systemd units, keeps tokens and its own client
certificate fresh, and reports a heartbeat to the cluster.
"""
_EPILOG = """\
The commands that only look have exit codes of their own, see their --help.

exit codes:
  0  stopped on request (also: stopped in order to be started again by systemd)
  1  wrong usage, unusable configuration, or an error that needs a restart

files:
  <config-dir>/config-<version>.yaml   configuration, kind NodeAgentConfiguration
  /var/lib/gardener-node-agent         state and credentials
  /run/gardener-node-agent/status.json what the agent is doing

environment:
  KUBECONFIG                                   replaces clientConnection.kubeconfig
  CONTAINERD_ADDRESS, CONTAINERD_NAMESPACE     containerd's socket; where pulled images are recorded
  EXPERIMENTAL_DISABLE_KUBERNETES_VERSION_CHECK=true  accepts any Kubernetes version
"""


_INTERRUPTED = 130
_LOGGERS = {"run": "gardener-node-agent", "bootstrap": "gardener-node-init", "reset": "gardener-node-reset"}


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line and the environment say."""

    command: str
    config_dir: Path
    inspection: argparse.Namespace | None = None
    """Arguments of a command that only looks, see `nodeagent.inspection`."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(1, f"error: {message}\nSee '{self.prog} --help'.\n")


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Parse the command line; ends the process for `--help`, `--version` and wrong usage."""
    flags = _Parser(add_help=False)
    flags.add_argument(
        "--config-dir", default=argparse.SUPPRESS, metavar="DIR", help="directory of the configuration file"
    )
    flags.add_argument(
        "--version",
        action="version",
        version=f"gardener-node-agent {GARDENER_VERSION} (gardener-agents {VERSION})",
        help="print the Gardener version that this build speaks, and its own",
    )
    parser = _Parser(
        prog="gardener-node-agent",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[flags],
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", title="commands", metavar="[command]")
    commands.add_parser(
        "bootstrap",
        parents=[flags],
        allow_abbrev=False,
        help="install and start the agent's systemd unit, then exit",
        description="Writes, enables and starts gardener-node-agent.service, and tests the connection to the API server.",
    )
    commands.add_parser(
        "reset",
        parents=[flags],
        allow_abbrev=False,
        help="remove from this machine what the agent brought, then exit",
        description="Stops agent, kubelet and Pods, removes units and files of all OperatingSystemConfigs, and empties "
        "/var/lib/gardener-node-agent and /var/lib/kubelet. Can be repeated. Delete the Node object first.",
    )
    if _names_command(arguments):
        from nodeagent.inspection.arguments import add

        add(commands, flags)
    parsed = parser.parse_args(arguments)
    command = parsed.command or "run"
    looks = command not in _LOGGERS
    directory = getattr(parsed, "config_dir", str(Paths().base) if looks else "")
    if not directory:
        parser.error("--config-dir is required")
    return Options(
        command=command,
        config_dir=Path(directory).absolute(),
        inspection=parsed if looks else None,
    )


def _names_command(arguments: Sequence[str]) -> bool:
    """Tell whether there is more than the flag that the agent itself is started with."""
    left = iter(arguments)
    for argument in left:
        if argument == "--config-dir":
            next(left, None)
        elif not argument.startswith("--config-dir="):
            return True
    return False


def load_config(
    options: Options, environment: Mapping[str, str], paths: Paths
) -> tuple[Path, config.NodeAgentConfiguration, tuple[Note, ...]]:
    """Find, read and validate the configuration; `KUBECONFIG` wins over what it says.

    The agent itself goes on with the configuration before if the file is damaged; see `nodeagent.config_history`.

    Raises:
        ConfigError: with every problem.
    """
    check = environment.get("EXPERIMENTAL_DISABLE_KUBERNETES_VERSION_CHECK") != "true"
    notes: tuple[Note, ...] = ()
    if options.command == "run":
        generations = Generations(paths.generations)
        path = _find(options.config_dir, generations)
        known = config_history.load(
            path,
            generations=generations,
            asked=lambda: config_history.asked_for(paths, path, hostname=read_hostname()),
            check_kubernetes_version=check,
        )
        loaded, notes = known.config, known.notes
    else:
        path = config.find(options.config_dir, GARDENER_VERSION)
        loaded = config.load(path, check_kubernetes_version=check)
    if kubeconfig := environment.get("KUBECONFIG"):
        connection = loaded.client_connection.model_copy(update={"kubeconfig": kubeconfig})
        loaded = loaded.model_copy(update={"client_connection": connection})
    return path, loaded, notes


def _find(directory: Path, generations: Generations) -> Path:
    """Return the configuration file; one that is gone as well, if it is known what it held."""
    try:
        return config.find(directory, GARDENER_VERSION)
    except ConfigError:
        path = directory / f"config-{GARDENER_VERSION}.yaml"
        if next(generations.kept(path), None) is None:
            raise
        return path


def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> int:
    """Run a command; returns the exit code."""
    environment = os.environ if environment is None else environment
    # The configuration says how to log; what comes before it is said in Gardener's default form.
    logging.configure("info", "json")
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments, environment)
        if options.inspection is not None:
            from nodeagent.inspection.run import run

            return run(options.inspection, environment)
        path, loaded, notes = load_config(options, environment, Paths())
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except ConfigError as error:
        if options.command == "reset" and (code := _already_reset()) is not None:
            return code
        for problem in error.problems:
            print(f"error: {error.fields['path']}: {problem}", file=sys.stderr)  # noqa: T201
        return 1
    logging.configure(loaded.log_level, loaded.log_format)  # type: ignore[arg-type]  # validated

    log = logging.get_logger(_LOGGERS[options.command])
    log.info(
        "Starting",
        command=options.command,
        configDir=str(options.config_dir),
        version=VERSION,
        gardenerVersion=GARDENER_VERSION,
        config=str(path),
    )
    try:
        return _run(options, path, loaded, notes, environment)
    except AgentError as error:
        log.error("Stopped by an error", error=error)
        print(f"error: {error}", flush=True)  # noqa: T201 - the console, as Gardener's agent does
        return 1
    except KeyboardInterrupt:
        return 0


def _run(
    options: Options,
    path: Path,
    loaded: config.NodeAgentConfiguration,
    notes: tuple[Note, ...],
    environment: Mapping[str, str],
) -> int:
    """Run a command; what it imports is heavy, and not needed to print a version or a mistake."""
    if options.command == "run":
        from nodeagent.app import run
        from nodeagent.host.ctr import CtrSettings
        from systemd.notify import ServiceEnvironment

        ctr = CtrSettings.from_environment(environment)
        service = ServiceEnvironment.of(environment)
        return asyncio.run(
            run(loaded, path, notes=notes, ctr=ctr, service=service, search_path=environment.get("PATH", ""))
        )
    from nodeagent import commands

    if options.command == "reset":
        return asyncio.run(commands.reset(loaded, path))
    return asyncio.run(commands.bootstrap(loaded, environment))


def _already_reset() -> int | None:
    """Return the exit code of a reset that has nothing to do; its configuration went with the reset before."""
    from nodeagent import commands

    paths = Paths()
    return commands.already_reset(paths) if commands.nothing_to_reset(paths) else None


if __name__ == "__main__":
    raise SystemExit(main())
