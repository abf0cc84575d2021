"""Command line of gardenlet: reads flags, environment and configuration; nothing else reads them.

Source: gardener cmd/gardenlet/app/options.go, cmd/gardenlet/app/app.go (contract core 1.1, 1.7).
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from agents.core import logging
from agents.core.config import ConfigError, parse_config, read_mapping, unknown_keys
from agents.core.errors import AgentError
from gardenlet import features
from gardenlet.config import ClientConnection, GardenletConfiguration
from gardenlet.config_validation import validate
from gardenlet.options import Options
from gardenlet.version import GARDENER_VERSION, VERSION

log = logging.get_logger("gardenlet")

T = TypeVar("T", bound=ClientConnection)

EXIT_USAGE = 2
"""Wrong usage and an unusable configuration; 1 is a failure while running."""

_DESCRIPTION = (
    "Reconciles Gardener's objects in a seed cluster: registers the seed, says that it lives, and serves its shoots."
)
COMMANDS = ("status", "validate", "schema", "version")
"""They only look, see `gardenlet.inspection`."""

_EPILOG = """\
commands that only look, each with its own --help:
  gardenlet status      what the gardenlet on this machine is doing
  gardenlet validate    check configuration files
  gardenlet schema      print a JSON Schema
  gardenlet version     print versions, ours and Gardener's

exit codes:
  0  stopped on request (also: stopped in order to be started again by the kubelet)
  1  an error that needs a restart, or the leader's lease was lost
  2  wrong usage or unusable configuration

environment:
  GARDEN_KUBECONFIG     replaces gardenClientConnection.kubeconfig
  KUBECONFIG            replaces seedClientConnection.kubeconfig; without either the service account is used
  NAMESPACE, POD_UID    of our Pod; NAMESPACE=kube-system serves the self-hosted shoot that we run in
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"error: {message}\nSee '{self.prog} --help'.\n")


class _Version(argparse.Action):
    """`--version` says who we are, `--version=raw` only the Gardener version."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        _namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        _option: str | None = None,
    ) -> None:
        if values == "raw":
            text = GARDENER_VERSION
        elif values in ("true", None):
            text = f"gardenlet {GARDENER_VERSION} (gardener-agents {VERSION})"
        else:
            parser.error("--version takes raw or nothing")
        parser._print_message(f"{text}\n", sys.stdout)  # noqa: SLF001 - as argparse's own version action does
        parser.exit()


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Parse the command line; ends the process for `--help`, `--version` and wrong usage."""
    parser = _Parser(
        prog="gardenlet",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", default="", metavar="FILE", help="the configuration file (required)")
    parser.add_argument(
        "--version", nargs="?", const="true", action=_Version, help="print versions and exit (=raw: one)"
    )
    parsed = parser.parse_args(arguments)
    if not parsed.config:
        parser.error("--config is required")
    return Options(
        config=Path(parsed.config).absolute(),
        namespace=environment.get("NAMESPACE", ""),
        pod_uid=environment.get("POD_UID", ""),
    )


def load_config(options: Options, environment: Mapping[str, str]) -> GardenletConfiguration:
    """Read, default and validate the configuration, with the environment's kubeconfigs in place of its own.

    Raises:
        ConfigError: with every problem and its JSON path.
    """
    mapping = read_mapping(options.config)
    config = parse_config(options.config, mapping, GardenletConfiguration)
    garden = _with_kubeconfig(config.garden_client_connection, environment.get("GARDEN_KUBECONFIG"))
    seed = _with_kubeconfig(config.seed_client_connection, environment.get("KUBECONFIG"))
    config = config.model_copy(update={"garden_client_connection": garden, "seed_client_connection": seed})
    if problems := list(validate(config, self_hosted=options.self_hosted)):
        raise ConfigError(options.config, problems)
    _tell_what_has_no_effect(mapping, config)
    return config


def prepare(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Options, GardenletConfiguration]:
    """Do everything that comes before the process itself: flags, configuration, logging, and saying who starts.

    Wrong usage and an unusable configuration end the process with code 2 and a line for each problem.
    """
    # The configuration says how to log; what comes before it is said in Gardener's default form.
    logging.configure("info", "json")
    options = parse(arguments, environment)
    try:
        config = load_config(options, environment)
    except ConfigError as error:
        for problem in error.problems:
            print(f"error: {options.config}: {problem}", file=sys.stderr)  # noqa: T201
        raise SystemExit(EXIT_USAGE) from None
    logging.configure(config.log_level, config.log_format)  # type: ignore[arg-type]  # validated
    log.info(
        "Starting",
        version=VERSION,
        gardenerVersion=GARDENER_VERSION,
        config=str(options.config),
        namespace=options.namespace,
        featureGates=features.effective(config.feature_gates),
    )
    return options, config


def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> int:
    """Run gardenlet; returns the exit code."""
    environment = os.environ if environment is None else environment
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments and arguments[0] in COMMANDS:
            from gardenlet.inspection.run import run

            return run(arguments, environment)
        options, config = prepare(arguments, environment)
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1
    try:
        return asyncio.run(_run(options, config, environment))
    except AgentError as error:
        log.error("Stopped by an error", error=error)
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 0


async def _run(options: Options, config: GardenletConfiguration, environment: Mapping[str, str]) -> int:
    from gardenlet.app import run  # only now: `--help` and a wrong configuration need none of it
    from gardenlet.seed_access import seed_access

    access = await seed_access(config.seed_client_connection.kubeconfig, environment)
    return await run(options, config, access, environment)


def _with_kubeconfig(connection: T, kubeconfig: str | None) -> T:
    return connection.model_copy(update={"kubeconfig": kubeconfig}) if kubeconfig else connection


def _tell_what_has_no_effect(mapping: Mapping[str, object], config: GardenletConfiguration) -> None:
    for key in unknown_keys(mapping, GardenletConfiguration):
        log.info("Configuration has an unknown key", key=key)
    for gate in features.ignored(config.feature_gates):
        log.info("Feature gate has no effect on gardenlet", featureGate=gate)
    for name, connection in (
        ("gardenClientConnection", config.garden_client_connection),
        ("seedClientConnection", config.seed_client_connection),
        ("shootClientConnection", config.shoot_client_connection),
    ):
        if "protobuf" in f"{connection.accept_content_types},{connection.content_type}":
            log.info("Content type has no effect, JSON is what we speak", connection=name)
