"""Files out of images: ours against `ctr` and `cp` alone, on the same machine, in turns."""

import os
import statistics
from collections.abc import Iterator

from tests.bench.figures import Figure
from tests.bench.measure import let_pass
from tests.lab.cluster import Lab
from tests.lab.machine import Machine, Storage
from tests.lab.oci import Entry, Image
from tests.support.extraction import ExtractorOnMachine, wanted

REPETITIONS = 7
MOST_TIMES = 1.15
_SETTLE_SECONDS = 2.0
_MIB = 1024 * 1024
_TARGET = "/opt/bin/bench"


def extraction(lab: Lab, storage: Storage) -> Iterator[Figure]:
    """Measure a binary of 90 MB, half of which can be compressed, out of a compressed layer.

    On a disk `cp` leaves everything to be written later, which would be lost with the power, so there the target is that
    of ctr, cp and a sync of the one file; the figure without it stands in the note.
    """
    content = os.urandom(45 * _MIB) + b"\0\1" * (45 * _MIB // 2)
    registry = lab.registry()
    image = registry.push(Image.build([Entry("gardener-node-agent", content)]), "bench/large")
    ours: list[float] = []
    alone: list[tuple[float, float]] = []
    with lab.removed_after(lab.add_machine(f"bench-images-{storage}", storage=storage)) as machine:
        extractor = ExtractorOnMachine.install(machine, lab.agent("source"))
        extractor.know(registry)
        for turn in range(REPETITIONS):
            for alone_now in (True, False) if turn % 2 else (False, True):
                _start_clean(machine)
                if alone_now:
                    alone.append(extractor.seconds_of_ctr_alone(image, wanted(target=_TARGET)))
                else:
                    ours.append(extractor.seconds(image, wanted(target=_TARGET)))
    unsynced, synced = (statistics.median(times) for times in zip(*alone, strict=True))
    compared = synced if storage == "ext4" else unsynced
    note = f"{MOST_TIMES} times ctr alone: {unsynced:.2f} s, with a sync {synced:.2f} s"
    yield Figure(f"90 MB out of an image ({storage})", statistics.median(ours), "s", "", MOST_TIMES * compared, note)


def _start_clean(machine: Machine) -> None:
    """Remove the file, and let everything come to the disk, what was freed too: nobody pays for what was there before."""
    machine.run(["rm", "-f", _TARGET])
    machine.run(["sync"], timeout=60)
    let_pass(_SETTLE_SECONDS)
