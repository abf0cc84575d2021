"""`python -m tests.chaos`: everything that must survive, on a lab of its own; the last line counts what passed and what failed.

Another sample each time; the seed is printed, and `SEED=` repeats it. Cases that fail are kept in build/chaos/, each in a
file that `--repeat FILE` runs again; those that failed once and were mended are in tests/chaos/regressions/ and come first
in every run, all of them, also those of campaigns that only the full run has; with `--only` those of the chosen campaigns. The days in
virtual time need no lab, and have none if they are all there is to do.
"""

import argparse
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.chaos.campaign import Campaign, Case, Tally, run_campaign
from tests.chaos.day import ROOT, VirtualDay
from tests.chaos.kills import Boundaries, FailingCalls, RandomKills
from tests.chaos.outage import Outages
from tests.chaos.pairs import Pairs
from tests.chaos.power_cuts import EveryWrite, PowerCuts
from tests.chaos.twin import World
from tests.lab.binaries import find_binaries
from tests.lab.cluster import Lab
from tests.lab.errors import LabError
from tests.lab.progress import to_stderr

FAILURES = ROOT / "build/chaos"
REGRESSIONS = Path(__file__).parent / "regressions"
DAY = "day"


@dataclass(frozen=True, slots=True)
class Profile:
    """How much of everything.

    Attributes:
        seconds: for all of it; what is not done by then is left out and said.
        boundaries: seconds for the sweep over every boundary.
        failing_calls: seconds for the sweep over every call that fails.
        kills: at random moments.
        cuts: of the power, at random moments.
        every_write: whether the power is cut at every write, too.
        pairs: of OSCs.
        outage: seconds.
        moves: whether the API server moves, too.
        cases: of each campaign, at most.
    """

    seconds: float
    boundaries: float
    failing_calls: float
    kills: int
    cuts: int
    every_write: bool
    pairs: int
    outage: float
    moves: bool
    cases: int | None = None


SHORT = Profile(1140, 150, 60, 40, 25, every_write=False, pairs=20, outage=120, moves=False)
FULL = Profile(6 * 3600, 6 * 3600, 6 * 3600, 200, 100, every_write=True, pairs=100, outage=600, moves=True)
KEPT = Profile(3600, 3600, 3600, 0, 0, every_write=True, pairs=0, outage=0, moves=True)
"""All campaigns, for cases that are given to them."""

_CAMPAIGNS: Mapping[str, type[Campaign]] = {
    DAY: VirtualDay,
    "kills": RandomKills,
    "cuts": PowerCuts,
    "pairs": Pairs,
    "outages": Outages,
    "failing": FailingCalls,
    "boundaries": Boundaries,
    "writes": EveryWrite,
}

Factory = Callable[[World, int, Path], Campaign]


def campaigns(profile: Profile) -> Mapping[str, tuple[Factory, float]]:
    """Return the campaigns of the lab in their order, each with the most seconds that it may take.

    Those with a number of cases come first; sweeps take another sample each time, and do with what time is left.
    """
    found: dict[str, tuple[Factory, float]] = {
        "kills": (lambda w, s, d: RandomKills(w, seed=s, scratch=d, number=profile.kills), profile.seconds),
        "cuts": (lambda w, s, d: PowerCuts(w, seed=s, scratch=d, number=profile.cuts), profile.seconds),
        "pairs": (lambda w, s, d: Pairs(w, seed=s, scratch=d, number=profile.pairs), profile.seconds),
        "outages": (
            lambda w, s, d: Outages(w, seed=s, scratch=d, seconds=profile.outage, moves=profile.moves),
            profile.seconds,
        ),
        "boundaries": (lambda w, s, d: Boundaries(w, seed=s, scratch=d), profile.boundaries),
        "failing": (lambda w, s, d: FailingCalls(w, seed=s, scratch=d), profile.failing_calls),
    }
    if profile.every_write:
        found["writes"] = (lambda w, s, d: EveryWrite(w, seed=s, scratch=d), profile.seconds)
    return found


def run(profile: Profile, chosen: Sequence[str], kept: Sequence[Case], seed: int) -> list[Tally]:
    """Run the kept cases, and then campaigns one after another; those in virtual time before all others, without a lab."""
    first = kept_first(kept, chosen)
    wanted = {name: found for name, found in campaigns(profile).items() if not chosen or name in chosen}
    days = [*first.pop(DAY, []), *(VirtualDay(seed=seed).cases() if not chosen or DAY in chosen else ())]
    if first or wanted:
        find_binaries(say=to_stderr)  # what is built once takes nothing of the time
    end = time.monotonic() + profile.seconds
    tallies = [_told(VirtualDay(seed=seed), days, deadline=math.inf)] if days else []
    if not first and not wanted:
        return tallies
    with _world() as world, tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
        for name, cases in first.items():
            campaign = campaigns(KEPT)[name][0](world, seed, Path(scratch))
            tallies.append(_told(campaign, cases, deadline=math.inf))
        for factory, seconds in wanted.values():
            campaign = factory(world, seed, Path(scratch))
            deadline = min(end, time.monotonic() + seconds)
            tallies.append(_told(campaign, campaign.cases(), deadline=deadline, most=profile.cases))
    return tallies


@contextmanager
def _world() -> Iterator[World]:
    """Have a lab for the length of a block."""
    lab = Lab(f"chaos-{os.getpid()}", say=to_stderr)
    try:
        lab.up()
        yield World.create(lab, lab.agent(os.environ.get("LAB_AGENT", "binary")))
    finally:
        lab.down()


def kept_first(kept: Sequence[Case], chosen: Sequence[str]) -> dict[str, list[Case]]:
    """Return the kept cases by the names of their campaigns; without those of campaigns that were not chosen, if any were.

    Raises:
        LabError: a case is of no campaign.
    """
    names = {campaign.name: name for name, campaign in _CAMPAIGNS.items()}
    found: dict[str, list[Case]] = {}
    for case in kept:
        if case.campaign not in names:
            raise LabError(f"no campaign {case.campaign!r}")
        name = names[case.campaign]
        if not chosen or name in chosen:
            found.setdefault(name, []).append(case)
    return found


def last_lines(tallies: Sequence[Tally], seed: int) -> Iterator[str]:
    """Yield what a run ends with: what each campaign did, what was left out, and in the last line the two numbers."""
    yield from (tally.line for tally in tallies)
    rests = [tally.rest for tally in tallies if tally.rest]
    yield f"not done to the end: {', '.join(rests)}" if rests else "nothing was left out for want of time"
    yield f"seed: {seed}"
    passed, failed = sum(tally.passed for tally in tallies), sum(len(tally.failed) for tally in tallies)
    yield f"{passed} passed, {failed} failed"


def _told(campaign: Campaign, cases: Iterable[Case], *, deadline: float, most: int | None = None) -> Tally:
    """Run cases, and say how it went."""
    to_stderr(f"{campaign.name} ...")
    tally = run_campaign(campaign, cases, deadline=deadline, failures=FAILURES, say=to_stderr, most=most)
    to_stderr(tally.line)
    return tally


def chosen_seed() -> int:
    """Return the seed that `SEED` gives, else a new one; it is printed."""
    given = os.environ.get("SEED", "")
    seed = int(given) if given else random.SystemRandom().randrange(1_000_000)
    print(f"seed: {seed} (repeat with SEED={seed})", flush=True)
    return seed


def main() -> int:
    """Run, and count."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all of it: hours")
    parser.add_argument("--only", action="append", default=[], choices=sorted(_CAMPAIGNS), help="some campaigns")
    parser.add_argument("--cases", type=int, metavar="N", help="of each campaign at most so many, then the next one")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="one kept case, and nothing else")
    arguments = parser.parse_args()
    seed = chosen_seed()
    profile = replace(FULL if arguments.full else SHORT, cases=arguments.cases)
    kept = [Case.load(path) for path in sorted(REGRESSIONS.glob("*.json"))]
    try:
        if arguments.repeat:
            tallies = [repeat(Case.load(arguments.repeat), seed)]
        else:
            tallies = run(profile, arguments.only, kept, seed)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for line in last_lines(tallies, seed):
        print(line)
    return 1 if any(tally.failed for tally in tallies) else 0


def repeat(case: Case, seed: int) -> Tally:
    """Run one kept case; a lab is there only if it needs one."""
    (name,) = kept_first([case], [])
    if name == DAY:
        return _repeated(VirtualDay(seed=seed), case)
    with _world() as world, tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
        return _repeated(campaigns(KEPT)[name][0](world, seed, Path(scratch)), case)


def _repeated(campaign: Campaign, case: Case) -> Tally:
    problems = campaign.run(case)
    to_stderr("\n".join(problems))
    tally = Tally(case.campaign, passed=int(not problems))
    tally.failed += [FAILURES] if problems else []
    return tally


if __name__ == "__main__":
    raise SystemExit(main())
