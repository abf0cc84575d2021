"""Short commands on the host, with an error text that says what failed."""

import subprocess
from collections.abc import Mapping, Sequence

from tests.lab.errors import LabError


def run(*argv: str, timeout: float = 60, env: Mapping[str, str] | None = None) -> str:
    """Run a command to its end and return its stdout.

    Raises:
        LabError: it failed, or took longer than the timeout (seconds).
    """
    try:
        done = subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=dict(env) if env is not None else None,
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{argv[0]} did not end within {timeout:g} s: {' '.join(argv)}") from error
    if done.returncode != 0:
        raise LabError(f"{' '.join(argv)}: {(done.stderr or done.stdout).strip()[-1000:]}")
    return done.stdout


def run_all(commands: Sequence[Sequence[str]]) -> None:
    """Run commands one after another; the first failure ends it."""
    for command in commands:
        run(*command)
