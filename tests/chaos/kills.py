"""SIGKILL of the agent: at every system call that changes something or sends something, and at random moments."""

from collections.abc import Iterator
from random import Random

from tests.chaos.campaign import Case
from tests.chaos.interruption import (
    agent_pid,
    end_once_applied,
    has_ended,
    wait_ready,
    was_reached,
)
from tests.chaos.random_moments import RandomMoments
from tests.chaos.recipes import Recipe
from tests.chaos.sweep import SweepCampaign

# Renames are files, unit files, drop-ins and journal steps; unlinks are removals; sends are D-Bus calls and API requests.
CALLS = {
    "rename": ("rename", "renameat", "renameat2"),
    "unlink": ("unlink", "unlinkat"),
    "send": ("sendto", "sendmsg"),
    "fsync": ("fsync",),
}
FAILING = {
    "fsync": ("fsync",),
    "rename": ("rename", "renameat", "renameat2"),
    "unlink": ("unlink", "unlinkat"),
    "link": ("link", "linkat"),
    "chmod": ("chmod", "fchmod", "fchmodat"),
    "chown": ("chown", "fchown", "fchownat", "lchown"),
    "mkdir": ("mkdir", "mkdirat"),
}
ERRORS = ("EIO", "ENOSPC", "EROFS")


class Boundaries(SweepCampaign):
    """A kill at each call of each kind."""

    name = "every boundary"
    kinds = CALLS

    def run(self, case: Case) -> list[str]:
        """Apply one side after the other, and kill."""
        twin = self._twin
        before, after = self.sides(case)
        self.begin(before)
        pid = agent_pid(twin.subject)
        with self.injected(case, pid) as log:
            end_once_applied(twin.subject, pid, twin.publish_to_both(after))
            reached = was_reached(log)
        return self.end([*self.note(case, reached=reached), *twin.compare(after)], at=after)


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
        twin = self._twin
        before, after = self.sides(case)
        self.begin(before)
        with self.injected(case, agent_pid(twin.subject), error=case.values["error"]) as log:
            twin.publish_to_both(after)
            problems = twin.compare(after)
        return self.end([*self.note(case, reached=was_reached(log)), *problems], at=after)


class RandomKills(RandomMoments):
    """A kill at a random moment."""

    name = "random kills"

    def prepare(self) -> None:
        """Note who is to be killed."""
        wait_ready(self._twin.subject)
        self._victim = agent_pid(self._twin.subject)

    def strike(self) -> bool:
        """Kill, unless it has ended by itself."""
        if has_ended(self._victim):
            return False
        self._twin.subject.machine.kill(self._victim)
        return True

    def afterwards(self, recipe: Recipe) -> list[str]:
        """Start, and compare."""
        return self._twin.compare(recipe)
