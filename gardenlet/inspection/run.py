"""Runs one of the commands: gathers, prints, returns the exit code."""

import argparse
import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from agents.core.clock import SystemClock
from agents.inspection import program
from agents.inspection.document import json_schema
from agents.inspection.output import Output
from gardenlet.inspection import arguments as command_line


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    stream: TextIO | None = None,
    errors: TextIO | None = None,
) -> int:
    """Run the command that the arguments name; returns the exit code."""
    parsed = command_line.parse(arguments)

    def command(output: Output) -> int:
        return _COMMANDS[parsed.command](parsed, environment, output)

    return program.run(parsed, environment, command, stream=stream, errors=errors)


def _status(arguments: argparse.Namespace, _environment: Mapping[str, str], output: Output) -> int:
    from gardenlet.inspection import status

    health, metrics, problem = status.ports(arguments.config)
    if problem:
        output.say(f"note: asking the default ports: {problem}")
    found = asyncio.run(status.gather(health, metrics, now=SystemClock().now()))
    output.document(found, status.lines)
    return status.exit_code(found)


def _validate(arguments: argparse.Namespace, environment: Mapping[str, str], output: Output) -> int:
    from agents.inspection import validation
    from gardenlet.inspection import validate
    from gardenlet.options import SELF_HOSTED_NAMESPACE

    found = validate.gather(arguments.files, self_hosted=environment.get("NAMESPACE") == SELF_HOSTED_NAMESPACE)
    output.document(found, validation.lines(validate.WORDS))
    return validation.exit_code(found)


def _schema(arguments: argparse.Namespace, _environment: Mapping[str, str], output: Output) -> int:
    from agents.inspection import schema, validation, version
    from gardenlet.config import GardenletConfiguration
    from gardenlet.inspection import status

    documents: Mapping[str, type[object]] = {
        "status": status.Status,
        "validate": validation.Validation,
        "version": version.Version,
    }
    kind = arguments.kind
    found = schema.of_configuration(GardenletConfiguration) if kind == "config" else json_schema(documents[kind])
    output.stream.write(schema.text(found))
    return 0


def _version(_arguments: argparse.Namespace, _environment: Mapping[str, str], output: Output) -> int:
    from agents.inspection import version
    from gardenlet.version import GARDENER_VERSION, VERSION

    output.document(version.gather("gardenlet", version=VERSION, gardener_version=GARDENER_VERSION), version.lines)
    return 0


_Command = Callable[[argparse.Namespace, Mapping[str, str], Output], int]
_COMMANDS: Mapping[str, _Command] = {
    "status": _status,
    "validate": _validate,
    "schema": _schema,
    "version": _version,
}
