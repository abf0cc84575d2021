"""`python -m tests.bench`: measure on a lab of its own, print the table, write build/bench.json."""

import argparse
import os
import sys
from pathlib import Path

from tests.bench import images, measure
from tests.bench.figures import Figure, render, save
from tests.lab.cluster import Lab
from tests.lab.errors import LabError
from tests.lab.machine import Storage
from tests.lab.progress import to_stderr
from tests.support.worker import Worker

OUTPUT = Path(__file__).resolve().parents[2] / "build/bench.json"


def run(lab: Lab) -> list[Figure]:
    """Measure everything; about five minutes."""
    figures: list[Figure] = []
    storages: tuple[Storage, ...] = ("tmpfs", "ext4")
    for storage in storages:
        to_stderr(f"OSC changes, state on {storage} ...")
        with lab.removed_after(lab.add_machine(f"bench-{storage}", storage=storage)) as machine:
            figures += measure.applies(Worker.join(lab, machine, lab.agent("binary")), storage)
    for storage in storages:
        to_stderr(f"files out of images, on {storage} ...")
        figures += images.extraction(lab, storage)
    to_stderr("process start, memory, idle minute: from the source tree ...")
    with lab.removed_after(lab.add_machine("bench-source")) as machine:
        worker = Worker.join(lab, machine, lab.agent("source"))
        figures.append(
            Figure(
                "process start until the lease is renewed",
                measure.start_seconds(worker),
                "s",
                "0.45 to 0.55 s",
                0.9,
                "source tree",
            )
        )
        idle = list(measure.idle(worker))
        resident, anonymous = measure.memory(worker)
        figures.append(Figure("resident memory, idle", resident, "MB", "75 MB", 72, "VmRSS"))
        figures.append(Figure("of it anonymous", anonymous, "MB", "18.6 MB", 48, "RssAnon"))
    to_stderr("joining ...")
    figures.append(
        Figure(
            "join",
            measure.join_seconds(lab, "bench-join", "binary"),
            "s",
            "24 to 33 s",
            15,
            "bootstrap until annotated",
        )
    )
    return figures + idle


def main() -> int:
    """Measure; a missed target is no failure."""
    argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__).parse_args()
    lab = Lab(f"bench-{os.getpid()}", say=to_stderr)
    try:
        lab.up()
        figures = run(lab)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        lab.down()
    print(render(figures))
    save(figures, OUTPUT)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
