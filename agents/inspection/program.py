"""Runs a command that only looks: where it prints, and what an error, a closed pipe and Ctrl-C mean."""

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

from agents.core import logging
from agents.core.errors import AgentError
from agents.inspection.output import Output, Style

FAILED = 1
INTERRUPTED = 130


def run(
    arguments: argparse.Namespace,
    environment: Mapping[str, str],
    command: Callable[[Output], int],
    *,
    stream: TextIO | None = None,
    errors: TextIO | None = None,
) -> int:
    """Run a command; returns the exit code.

    Args:
        arguments: `output` is text or json.
        environment: of the process.
        command: prints, and returns the exit code.
        stream: for the result, stdout by default.
        errors: for everything else, stderr by default.
    """
    logging.configure("error", "text", stream=errors)
    stream, errors = stream or sys.stdout, errors or sys.stderr
    output = Output(stream, errors, arguments.output, Style.of(stream, environment))
    try:
        return command(output)
    except AgentError as error:
        output.say(f"error: {error}")
        return FAILED
    except BrokenPipeError:
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
