"""Campaigns are many cases of one kind; the runner counts them, keeps those that fail, and watches the time."""

import json
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from tests.lab.errors import LabError

Say = Callable[[str], None]
_LONGEST_PROBLEM = 4000
_TELL_EVERY = 5
_GIVE_UP_AFTER = 5
"""Failures one after another: then it is the lab, or all is broken."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to try; all of it can be written to a file, and repeated from there.

    Attributes:
        campaign: name of the campaign that knows how.
        seed: of the run in which it was drawn.
        values: what it consists of.
    """

    campaign: str
    seed: int
    values: Mapping[str, Any] = field(repr=False)

    @classmethod
    def load(cls, path: Path) -> "Case":
        """Read a kept case.

        Raises:
            LabError: there is none.
        """
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return cls(document["campaign"], document["seed"], document["values"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LabError(f"no kept case in {path}: {error}") from error

    def save(self, path: Path, problems: Sequence[str]) -> None:
        """Keep it, with what went wrong."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**asdict(self), "problems": list(problems)}, indent=1, ensure_ascii=False)
        path.write_text(f"{text}\n", encoding="utf-8")


class Campaign(Protocol):
    """Knows its cases, and how to try one."""

    name: str

    def cases(self) -> Iterator[Case]:
        """Yield the cases of this run."""
        ...

    def run(self, case: Case) -> list[str]:
        """Try one; returns what is wrong afterwards. An exception is wrong as well."""
        ...

    def recover(self) -> None:
        """Make a fresh start after a case that failed."""
        ...

    def close(self) -> None:
        """Remove what it set up."""
        ...


@dataclass(slots=True)
class Tally:
    """What became of a campaign.

    Attributes:
        passed: number of cases.
        failed: the files in which the failed ones are kept.
        notes: what else there is to say.
        seconds: how long it took.
        out_of_time: whether cases were left when the time was up, or it was given up.
    """

    name: str
    passed: int = 0
    failed: list[Path] = field(default_factory=list)
    notes: str = ""
    seconds: float = 0.0
    out_of_time: bool = False

    @property
    def rest(self) -> str:
        """What was not done, for people; empty if everything was."""
        return f"{self.name} after {self.passed + len(self.failed)} cases" if self.out_of_time else ""

    @property
    def line(self) -> str:
        """One line for people."""
        rest = ", out of time" if self.out_of_time else ""
        notes = f" ({self.notes})" if self.notes else ""
        return f"{self.name}: {self.passed} passed, {len(self.failed)} failed in {self.seconds:.0f} s{rest}{notes}"


def run_campaign(
    campaign: Campaign, cases: Iterable[Case], *, deadline: float, failures: Path, say: Say, most: int | None = None
) -> Tally:
    """Run cases of a campaign until the deadline (monotonic seconds), or as many as asked for; it is closed afterwards."""
    tally, started, in_a_row = Tally(campaign.name), time.monotonic(), 0
    try:
        for case in islice(cases, most):
            if time.monotonic() > deadline:
                tally.out_of_time = True
                break
            problems = _attempt(campaign, case)
            in_a_row = in_a_row + 1 if problems else 0
            if not problems:
                tally.passed += 1
                if tally.passed % _TELL_EVERY == 0:
                    say(f"  {tally.passed} passed after {time.monotonic() - started:.0f} s")
                continue
            path = failures / f"{campaign.name.replace(' ', '-')}-{case.seed}-{len(tally.failed) + 1}.json"
            case.save(path, problems)
            tally.failed.append(path)
            say(f"FAILED {campaign.name}, kept in {path}:\n" + "\n".join(problems)[:_LONGEST_PROBLEM])
            if in_a_row == _GIVE_UP_AFTER or not _recovers(campaign, say):
                tally.out_of_time = True
                break
    finally:
        campaign.close()
    tally.notes = getattr(campaign, "notes", "")
    tally.seconds = time.monotonic() - started
    return tally


def _recovers(campaign: Campaign, say: Say) -> bool:
    """Make a fresh start; machines may need a second try after what was done to the lab."""
    for _ in range(2):
        try:
            campaign.recover()
        except Exception:  # noqa: BLE001 - said, and the other campaigns go on
            say(f"no fresh start for {campaign.name}:\n{traceback.format_exc(limit=-3)}")
        else:
            return True
    return False


def _attempt(campaign: Campaign, case: Case) -> list[str]:
    try:
        return campaign.run(case)
    except Exception:  # noqa: BLE001 - whatever it is, the case has failed and the others go on
        return [traceback.format_exc(limit=-6)]
