"""A day in virtual time, of a node agent and of a gardenlet: without a lab, in a process of its own; its seed is all that it consists of."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.campaign import Case

ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 1200.0
_LAST = 3500
"""So many characters of what a day that failed has printed are kept: its assertions come last."""


class VirtualDay:
    """One day of each of the two.

    Args:
        seed: of the faults.
    """

    name = "24 hours in virtual time"
    folder = "tests/chaos/virtual"

    def __init__(self, *, seed: int) -> None:
        self._seed = seed

    def cases(self) -> Iterator[Case]:
        """Yield the one of this run."""
        yield Case(self.name, self._seed, {})

    def run(self, case: Case) -> list[str]:
        """Live through it."""
        argv = [sys.executable, "-m", "pytest", "-q", "--no-header", self.folder]
        environment = {**os.environ, "SEED": str(case.seed)}
        done = subprocess.run(
            argv, cwd=ROOT, env=environment, check=False, timeout=_SECONDS, capture_output=True, text=True
        )
        return [] if done.returncode == 0 else [(done.stdout + done.stderr)[-_LAST:]]

    def recover(self) -> None:
        """There is nothing to put right."""

    def close(self) -> None:
        """There is nothing to remove."""
