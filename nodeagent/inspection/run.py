"""Runs one of the commands: gathers, prints, returns the exit code."""

import argparse
import asyncio
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TextIO

from agents.core.clock import SystemClock
from agents.inspection import program
from agents.inspection.output import Output
from nodeagent.paths import Paths


def run(
    arguments: argparse.Namespace,
    environment: Mapping[str, str],
    *,
    paths: Paths | None = None,
    stream: TextIO | None = None,
    errors: TextIO | None = None,
) -> int:
    """Run the command that the arguments name; returns the exit code.

    Args:
        arguments: parsed by what `arguments.add` built.
        environment: of the process.
        paths: where the machine's files are.
        stream: for the result, stdout by default.
        errors: for everything else, stderr by default.
    """
    places = paths or Paths()

    def command(output: Output) -> int:
        return _COMMANDS[arguments.command](arguments, environment, places, output)

    return program.run(arguments, environment, command, stream=stream, errors=errors)


def config_dir(arguments: argparse.Namespace, paths: Paths) -> Path:
    """Return the directory of the configuration; the standard one unless given."""
    return Path(getattr(arguments, "config_dir", paths.base)).absolute()


def _version(_arguments: argparse.Namespace, _environment: Mapping[str, str], _paths: Paths, output: Output) -> int:
    from agents.inspection import version as shared
    from nodeagent.inspection import version

    output.document(version.gather(), shared.lines)
    return 0


def _schema(arguments: argparse.Namespace, _environment: Mapping[str, str], _paths: Paths, output: Output) -> int:
    from agents.inspection import schema as shared
    from nodeagent.inspection import schema

    output.stream.write(shared.text(schema.gather(arguments.kind)))
    return 0


def _validate(arguments: argparse.Namespace, environment: Mapping[str, str], paths: Paths, output: Output) -> int:
    from agents.inspection import validation
    from nodeagent.inspection import validate

    check = environment.get("EXPERIMENTAL_DISABLE_KUBERNETES_VERSION_CHECK") != "true"
    found = validate.gather(arguments.files, paths=paths, check_kubernetes_version=check)
    output.document(found, validation.lines(validate.WORDS))
    return validation.exit_code(found)


def _status(arguments: argparse.Namespace, environment: Mapping[str, str], paths: Paths, output: Output) -> int:
    from nodeagent.inspection import status, status_text
    from nodeagent.inspection.follow import follow, look

    clock, directory = SystemClock(), config_dir(arguments, paths)

    async def gather() -> status.Status:
        return await look(paths=paths, config_dir=directory, clock=clock, environment=environment)

    async def wait() -> status.Status:
        if not arguments.wait:
            return await gather()
        return await follow(
            gather,
            clock=clock,
            timeout=timedelta(seconds=arguments.timeout),
            changed=lambda found: output.say(status_text.summary(found)),
        )

    found = asyncio.run(wait())
    output.document(found, status_text.lines)
    return status.exit_code(found)


def _plan(arguments: argparse.Namespace, environment: Mapping[str, str], paths: Paths, output: Output) -> int:
    from nodeagent.host.hostname import read_hostname
    from nodeagent.inspection import plan_text, planning, state
    from nodeagent.inspection.machine import RealMachine
    from nodeagent.inspection.plan import Plan
    from osc.errors import InvalidOSC

    async def gather() -> Plan:
        found, hostname = state.read(paths, config_dir(arguments, paths)), read_hostname()
        file = None if arguments.osc is None else Path(arguments.osc)
        source, desired = planning.read_desired(
            file, state=found, paths=paths, hostname=hostname, environment=environment
        )
        async with RealMachine(paths=paths, state=found, clock=SystemClock(), environment=environment) as machine:
            return await planning.gather(source, desired, state=found, machine=machine, paths=paths, hostname=hostname)

    try:
        output.document(asyncio.run(gather()), plan_text.lines)
    except InvalidOSC as error:
        for problem in error.problems:
            output.say(f"error: {problem}")
        return program.FAILED
    return 0


def _apply(arguments: argparse.Namespace, _environment: Mapping[str, str], paths: Paths, output: Output) -> int:
    from agents.core import logging
    from nodeagent import app, foreground
    from nodeagent.cli import Options, load_config
    from nodeagent.host.ctr import CtrSettings
    from systemd.manager import SystemdUnitManager
    from systemd.notify import ServiceEnvironment

    directory, clock = config_dir(arguments, paths), SystemClock()

    async def take_the_services_place() -> dict[str, str]:
        units = SystemdUnitManager()
        try:
            return await foreground.environment_of_service(units)
        finally:
            await units.close()

    async def apply() -> int:
        service = await take_the_services_place()
        # For what is started by us as well.
        os.environ.clear()
        os.environ.update(service)
        path, loaded, notes = load_config(Options("run", directory), service, paths)
        if arguments.verbose:
            logging.configure(loaded.log_level, loaded.log_format)  # type: ignore[arg-type]  # validated

        async def run(owner: foreground.Owner) -> int:
            return await app.run(
                loaded,
                path,
                notes=notes,
                ctr=CtrSettings.from_environment(service),
                service=ServiceEnvironment.of(service),
                search_path=service.get("PATH", ""),
                owner=app.Owner(owner.shutdown, owner.say, owner.abort),
            )

        follower = foreground.Follower(paths, directory, clock)
        owner = foreground.Owner(follower, lambda found: output.document(found, foreground.lines))
        progress = foreground.Progress(output.errors, quiet=arguments.verbose)
        timeout = timedelta(seconds=arguments.timeout)
        return owner.finish(await foreground.apply_once(run, owner, progress, timeout=timeout))

    return asyncio.run(apply())


def _diagnose(arguments: argparse.Namespace, environment: Mapping[str, str], paths: Paths, output: Output) -> int:
    from nodeagent.inspection import bundle, diagnose
    from nodeagent.inspection.follow import look_closely

    clock = SystemClock()

    async def examine() -> diagnose.Diagnosis:
        close = await look_closely(
            paths=paths, config_dir=config_dir(arguments, paths), clock=clock, environment=environment
        )
        if arguments.bundle is not None:
            contents = await bundle.collect(close.diagnosis, close.status, close.units, paths=paths)
            await asyncio.to_thread(bundle.write, Path(arguments.bundle), contents, now=clock.now())
            output.say(f"bundle written: {arguments.bundle}")
        return close.diagnosis

    found = asyncio.run(examine())
    output.document(found, diagnose.lines)
    return diagnose.exit_code(found)


Command = Callable[[argparse.Namespace, Mapping[str, str], Paths, Output], int]

_COMMANDS: Mapping[str, Command] = {
    "status": _status,
    "plan": _plan,
    "apply": _apply,
    "diagnose": _diagnose,
    "validate": _validate,
    "schema": _schema,
    "version": _version,
}
