"""SIGKILL of the agent: at every system call that changes something or sends something, and at random moments."""

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.chaos.campaign import Case
from tests.chaos.interruption import agent_pid, injected, wait_ended, wait_ready, was_injected, was_killed
from tests.chaos.recipes import harmless, recipes, sample
from tests.chaos.sweep import SweepCampaign
from tests.chaos.twin import TwinCampaign, World

# Renames are files, unit files, drop-ins and journal steps; unlinks are removals; sends are D-Bus calls and API requests.
CALLS = {"rename": "rename,renameat,renameat2", "unlink": "unlink,unlinkat", "send": "sendto,sendmsg", "fsync": "fsync"}
LONGEST_APPLY_SECONDS = 0.8
FAILING = {
    "fsync": "fsync",
    "rename": "rename,renameat,renameat2",
    "unlink": "unlink,unlinkat",
    "link": "link,linkat",
    "chmod": "chmod,fchmod,fchmodat",
    "chown": "chown,fchown,fchownat,lchown",
    "mkdir": "mkdir,mkdirat",
}
ERRORS = ("EIO", "ENOSPC", "EROFS")


class Boundaries(SweepCampaign):
    """A kill at each call of each kind."""

    name = "every boundary"
    kinds = CALLS

    def run(self, case: Case) -> list[str]:
        """Apply one side after the other, and kill."""
        values, twin = case.values, self._twin
        before, after = self.sides(case)
        twin.start_from(before)
        log, pid = self.fresh_log(), agent_pid(twin.subject)
        with injected(pid, CALLS[values["kind"]], f"signal=KILL:when={values['number']}", log):
            self.publish(after)
            wait_ended(pid)  # the own configuration changes, so it ends in any case
            reached = was_killed(log, pid)
        self.note(case, reached=reached)
        return twin.compare(after)


class FailingCalls(SweepCampaign):
    """An error instead of each call of each kind: a disk that is full, broken or read-only for a moment."""

    name = "every failing call"
    kinds = FAILING

    def cases(self) -> Iterator[Case]:
        """Yield the points of the sweep, each with an error."""
        rng = Random(self._seed)
        for case in super().cases():
            yield Case(case.campaign, case.seed, {**case.values, "error": rng.choice(ERRORS)})

    def run(self, case: Case) -> list[str]:
        """Apply one side after the other, and let a call fail."""
        values, twin = case.values, self._twin
        before, after = self.sides(case)
        twin.start_from(before)
        log, fault = self.fresh_log(), f"error={values['error']}:when={values['number']}"
        with injected(agent_pid(twin.subject), FAILING[values["kind"]], fault, log):
            self.publish(after)
            problems = twin.compare(after)
        self.note(case, reached=was_injected(log))
        return problems


class RandomKills(TwinCampaign):
    """Random OSCs, and a kill at a random moment of each apply."""

    name = "random kills"

    def __init__(self, world: World, *, seed: int, scratch: Path, number: int) -> None:
        super().__init__(world, seed=seed, scratch=scratch)
        self._number = number
        self._hit = 0

    @property
    def notes(self) -> str:
        """In how many cases the apply had not ended when the agent was killed."""
        return f"{self._hit} before the OSC was applied"

    def cases(self) -> Iterator[Case]:
        """Yield them."""
        rng = Random(self._seed)
        for recipe in sample(recipes(), self._number, self._seed):
            delay = round(rng.uniform(0.0, LONGEST_APPLY_SECONDS), 4)
            yield Case(self.name, self._seed, {"recipe": harmless(recipe), "delay": delay})

    def run(self, case: Case) -> list[str]:
        """Publish, wait a moment, kill."""
        twin, recipe = self._twin, case.values["recipe"]
        wait_ready(twin.subject)
        pid = agent_pid(twin.subject)
        twin.publish(twin.reference, recipe)
        checksum = twin.publish(twin.subject, recipe)
        time.sleep(case.values["delay"])
        self._hit += twin.subject.applied() != checksum
        if Path(f"/proc/{pid}").exists():
            twin.subject.machine.kill(pid)
        return twin.compare(recipe)
