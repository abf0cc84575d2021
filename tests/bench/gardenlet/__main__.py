"""Measures gardenlet against a garden and a seed of its own for each row, prints the table, writes build/bench-gardenlet.json."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.bench.figures import Figure, render, save
from tests.bench.gardenlet import life, load
from tests.bench.gardenlet.seat import Seat, Sizes, seated
from tests.lab import state
from tests.lab.errors import LabError
from tests.lab.progress import to_stderr

OUTPUT = Path(__file__).resolve().parents[3] / "build/bench-gardenlet.json"
ROWS: dict[str, Callable[[Seat], Iterator[Figure]]] = {
    "start": life.start,
    "program": life.program,
    "memory": life.idle_memory,
    "requests": life.requests,
    "load": load.loaded,
    "restart": life.restart,
    "handover": life.handover,
    "lateness": load.lateness,
    "policies": load.policies,
}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    sizes = Sizes()
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gardenlet", description=__doc__)
    parser.add_argument("--only", action="append", choices=tuple(ROWS), help="a row; may be given several times")
    parser.add_argument("--shoots", type=int, default=sizes.shoots, help="of the row about load (default: %(default)s)")
    parser.add_argument("--secrets", type=int, default=sizes.secrets, help="in garden and seed (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=sizes.seconds, help="of the row about lateness (default: %(default)s)"
    )
    parser.add_argument("--idle", type=float, default=sizes.idle, help="seconds of idleness (default: %(default)s)")
    parser.add_argument(
        "--namespaces", type=int, default=sizes.namespaces, help="of shoots, for policies (default: %(default)s)"
    )
    parser.add_argument(
        "--repetitions", type=int, default=sizes.repetitions, help="of what is short (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the rows are written (default: %(default)s)")
    return parser.parse_args()


def measure(rows: Sequence[str], sizes: Sizes) -> Iterator[Figure]:
    """Measure some rows."""
    for row in rows:
        to_stderr(f"{row} ...")
        with seated(row, sizes) as seat:
            # With load the garden is reached by a way of its own, which the token has to name.
            if row != "load":
                seat.gardenlet.hand_token()
            yield from ROWS[row](seat)


def main() -> int:
    """Measure; a missed target is no failure."""
    given = arguments()
    sizes = Sizes(given.shoots, given.secrets, given.seconds, given.idle, given.namespaces, given.repetitions)
    figures, code = list[Figure](), 0
    state.remove_abandoned()
    try:
        for figure in measure(given.only or tuple(ROWS), sizes):
            to_stderr(f"  {figure.name}: {figure.value:.3g} {figure.unit} {figure.verdict}".rstrip())
            figures.append(figure)
    except (LabError, AssertionError) as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    finally:
        # Also what was measured before something failed.
        print(render(figures))
        save(figures, given.output)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
