"""`python -m tests.bench`: measure on a lab of its own, print the table, write build/bench.json; about twelve minutes."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench import images, load, measure
from tests.bench.figures import Figure, render, save
from tests.lab.cluster import Lab
from tests.lab.errors import LabError
from tests.lab.machine import Storage
from tests.lab.progress import to_stderr
from tests.support.worker import Worker

OUTPUT = Path(__file__).resolve().parents[2] / "build/bench.json"
STORAGES: tuple[Storage, ...] = ("tmpfs", "ext4")


def changes(lab: Lab) -> Iterator[Figure]:
    """How long a new OSC takes. Every OSC has `criConfig`: the machines' programs come out of a registry."""
    for storage in STORAGES:
        to_stderr(f"OSC changes, state on {storage} ...")
        with lab.removed_after(lab.add_machine(f"bench-{storage}", storage=storage)) as machine:
            worker = Worker.join(lab, machine, lab.agent("binary"))
            yield from measure.applies(worker, storage)
            yield from load.large_osc(worker, storage)


def extractions(lab: Lab) -> Iterator[Figure]:
    """How long a file out of an image takes."""
    for storage in STORAGES:
        to_stderr(f"files out of images, on {storage} ...")
        yield from images.extraction(lab, storage)


def life(lab: Lab) -> Iterator[Figure]:
    """One process: its start, its memory, what it does while idle and under much work."""
    to_stderr("process start, memory, two idle minutes ...")
    with lab.removed_after(lab.add_machine("bench-start", storage="ext4")) as machine:
        worker = Worker.join(lab, machine, lab.agent("binary"))
        start = measure.start_seconds(worker)
        yield Figure("process start until the lease is renewed", start, "s", "0.45 to 0.55 s", 0.75)
        yield Figure("the same where it has to unpack first", measure.first_start_seconds(worker), "s", "", 2.0, "ext4")
        yield from measure.idle(worker)
        resident, anonymous = measure.memory(worker)
        yield Figure("resident memory, idle", resident, "MB", "75 MB", 72, "VmRSS")
        yield Figure("of it anonymous", anonymous, "MB", "18.6 MB", 48, "RssAnon")
        to_stderr("many OSC changes, then many files ...")
        yield load.memory_growth(worker)
        yield load.drift_scan(worker)


def join(lab: Lab) -> Iterator[Figure]:
    """How long a machine takes to become a node."""
    to_stderr("joining ...")
    seconds = measure.join_seconds(lab, "bench-join", "binary")
    yield Figure("join", seconds, "s", "24 to 33 s", 15, "bootstrap until annotated")


ROWS: dict[str, Callable[[Lab], Iterator[Figure]]] = {
    "changes": changes,
    "images": extractions,
    "life": life,
    "join": join,
}


def main() -> int:
    """Measure; a missed target is no failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=tuple(ROWS), help="some rows; may be given several times")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the rows are written (default: %(default)s)")
    given = parser.parse_args()
    lab, figures, code = Lab(f"bench-{os.getpid()}", say=to_stderr), list[Figure](), 0
    try:
        lab.up()
        for row in given.only or ROWS:
            for figure in ROWS[row](lab):
                to_stderr(f"  {figure.name}: {figure.value:.3g} {figure.unit} {figure.verdict}".rstrip())
                figures.append(figure)
    except (LabError, AssertionError) as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    finally:
        lab.down()
        # Also what was measured before something failed.
        print(render(figures))
        save(figures, given.output)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
