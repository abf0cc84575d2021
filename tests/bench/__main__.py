"""`python -m tests.bench`: measure on a lab of its own, print the table, write build/bench.json."""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.bench import images, load, measure
from tests.bench.figures import Figure, render, save
from tests.lab.cluster import Lab
from tests.lab.errors import LabError
from tests.lab.machine import Storage
from tests.lab.progress import to_stderr
from tests.support.worker import Worker

OUTPUT = Path(__file__).resolve().parents[2] / "build/bench.json"


def run(lab: Lab) -> Iterator[Figure]:
    """Measure everything; about twelve minutes. Every OSC has `criConfig`: the machines' programs come out of a registry."""
    storages: tuple[Storage, ...] = ("tmpfs", "ext4")
    for storage in storages:
        to_stderr(f"OSC changes, state on {storage} ...")
        with lab.removed_after(lab.add_machine(f"bench-{storage}", storage=storage)) as machine:
            worker = Worker.join(lab, machine, lab.agent("binary"))
            yield from measure.applies(worker, storage)
            yield from load.large_osc(worker, storage)
    for storage in storages:
        to_stderr(f"files out of images, on {storage} ...")
        yield from images.extraction(lab, storage)
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
    to_stderr("joining ...")
    seconds = measure.join_seconds(lab, "bench-join", "binary")
    yield Figure("join", seconds, "s", "24 to 33 s", 15, "bootstrap until annotated")


def main() -> int:
    """Measure; a missed target is no failure."""
    argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__).parse_args()
    lab, figures, code = Lab(f"bench-{os.getpid()}", say=to_stderr), list[Figure](), 0
    try:
        lab.up()
        for figure in run(lab):
            to_stderr(f"  {figure.name}: {figure.value:.3g} {figure.unit} {figure.verdict}".rstrip())
            figures.append(figure)
    except (LabError, AssertionError) as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    finally:
        lab.down()
        # Also what was measured before something failed.
        print(render(figures))
        save(figures, OUTPUT)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
