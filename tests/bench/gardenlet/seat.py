"""A garden with one gardenlet in it, for one row of the table; every row has its own."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.gardenlet.beats import Beats
from tests.lab import state
from tests.lab.api import wait_for
from tests.lab.errors import LabError
from tests.lab.garden.garden import Garden
from tests.lab.garden.gardenlet import Gardenlet
from tests.lab.processes import tail
from tests.lab.state import Ledger

_MB = 1e6


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything.

    Attributes:
        shoots: in the garden, each with a namespace and a Cluster in the seed.
        secrets: in garden and seed together.
        seconds: how long the row about lateness takes.
        idle: how long an idle gardenlet is looked at, in seconds.
        namespaces: of shoots, for the row about network policies.
        repetitions: of what is short.
    """

    shoots: int = 250
    secrets: int = 20_000
    seconds: float = 600.0
    idle: float = 60.0
    namespaces: int = 200
    repetitions: int = 5


@dataclass(frozen=True, slots=True)
class Seat:
    """What a row has.

    Attributes:
        gardenlet: with a bootstrap token, not started.
        beats: its renewals, from now on.
        folder: for files.
        sizes: how much of everything.
    """

    gardenlet: Gardenlet
    beats: Beats
    folder: Path
    sizes: Sizes

    def join(self) -> None:
        """Start for the first time, and wait until the bootstrap is over."""
        one = self.gardenlet
        one.start()
        self.beats.after(one.started)
        gone = f"/api/v1/namespaces/garden/secrets/{one.name}-bootstrap"
        wait_for(lambda: one.garden.seed.admin.find(gone) is None, timeout=60, what="the end of the bootstrap")

    def restart(self) -> float:
        """End in order and start again; returns the seconds from the start to the first beat."""
        self.gardenlet.end()
        self.gardenlet.start()
        return self.beats.after(self.gardenlet.started).seen - self.gardenlet.started


@contextmanager
def seated(row: str, sizes: Sizes) -> Iterator[Seat]:
    """Have a garden, a seed and a gardenlet for the length of a block."""
    ledger = Ledger(f"gl-{row}-{os.getpid()}")
    ledger.create()
    state.claim(ledger)
    garden = Garden(ledger)
    garden.up()
    try:
        with tempfile.TemporaryDirectory(prefix="bench-gardenlet-") as name:
            gardenlet = Gardenlet(garden, Path(name), name=f"bench-{row}")
            try:
                with Beats(gardenlet) as beats:
                    yield Seat(gardenlet, beats, Path(name), sizes)
            except LabError as error:
                raise LabError(f"{error}\n{tail(Path(name) / f'{gardenlet.name}.log', lines=8)}") from error
            finally:
                gardenlet.kill()
    finally:
        garden.down()


def memory(gardenlet: Gardenlet) -> dict[str, float]:
    """Return what `/proc` says of its memory in MB: VmRSS, RssAnon, and VmHWM, the most there was.

    Raises:
        LabError: it has ended.
    """
    if gardenlet.process.poll() is not None:
        raise LabError(f"gardenlet ended with {gardenlet.process.returncode}")
    lines = Path(f"/proc/{gardenlet.process.pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) * 1024 / _MB for name in ("VmRSS", "RssAnon", "VmHWM")}
