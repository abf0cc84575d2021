"""SIGKILL of the agent: at every system call that changes something or sends something, and at random moments."""

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.chaos.campaign import Case
from tests.chaos.interruption import agent_pid, injected, wait_ended, wait_ready, was_injected, was_killed
from tests.chaos.recipes import Recipe, harmless, recipes, sample
from tests.chaos.sweep import Sweep
from tests.chaos.twin import Twin, World

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


def two_sides(own_config: int) -> tuple[Recipe, Recipe]:
    """Return two OSCs that differ in every kind of item, so that an apply in either direction has all kinds of steps."""
    unit = {"enable": None, "command": "start", "fails": False, "filePaths": ["/opt/test/a"]}
    left: Recipe = {
        "files": {
            "/opt/test/a": {"text": "one\n", "mode": 0o640},
            "/opt/test/b": {"secret": 1, "mode": None},
            "/opt/test/deep/er/c": {"image": 1, "mode": 0o755},
        },
        "units": {
            "chaos-1.service": {**unit, "content": 1, "dropIns": {"10.conf": 1}},
            "chaos-2.service": {**unit, "content": 1, "dropIns": {}},
            "os-1.service": {"dropIns": {"10.conf": 1}},
        },
        "registries": {"one.example": 1},
        "config": own_config,
    }
    right: Recipe = {
        "files": {"/opt/test/a": {"b64": "two\n", "mode": 0o600}, "/etc/of-the-os": {"text": "ours\n", "mode": 0o644}},
        "units": {
            "chaos-1.service": {**unit, "content": 2, "dropIns": {"20.conf": 2}},
            "chaos-3.service": {**unit, "content": 1, "command": "restart", "dropIns": {"10.conf": 3}},
            "os-2.service": {"dropIns": {"20.conf": 1}},
        },
        "registries": {"two.example": 2},
        "config": own_config + 1,
    }
    return left, right


class _Kills:
    """What both campaigns do."""

    def __init__(self, world: World, *, seed: int, scratch: Path) -> None:
        self._world = world
        self._seed = seed
        self._scratch = scratch
        self._made: Twin | None = None

    @property
    def _twin(self) -> Twin:
        if self._made is None:
            self._made = Twin(self._world)
        return self._made

    def recover(self) -> None:
        """Begin again with fresh machines."""
        if self._made is not None:
            self._made.renew()

    def close(self) -> None:
        """Remove the machines."""
        if self._made is not None:
            self._made.close()


class Boundaries(_Kills):
    """A kill at each call of each kind."""

    name = "every boundary"

    def __init__(self, world: World, *, seed: int, scratch: Path) -> None:
        super().__init__(world, seed=seed, scratch=scratch)
        self._sweep = Sweep(tuple(CALLS), seed)

    @property
    def notes(self) -> str:
        """How many calls of each kind there were."""
        return self._sweep.notes

    def cases(self) -> Iterator[Case]:
        """Yield the points of the sweep."""
        yield from (Case(self.name, self._seed, point) for point in self._sweep.points())

    def run(self, case: Case) -> list[str]:
        """Apply one side after the other, and kill."""
        values, sides = case.values, two_sides(1)
        before, after = sides[1 - values["side"]], sides[values["side"]]
        twin = self._twin
        twin.start_from(before)
        log = self._scratch / "strace"
        log.unlink(missing_ok=True)
        pid = agent_pid(twin.subject)
        with injected(pid, CALLS[values["kind"]], f"signal=KILL:when={values['number']}", log):
            twin.publish(twin.reference, after)
            twin.publish(twin.subject, after)
            wait_ended(pid)  # the own configuration changes, so it ends in any case
        self._sweep.note(values, reached=was_killed(log))
        return twin.compare(after)


class FailingCalls(_Kills):
    """An error instead of each call of each kind: a disk that is full, broken or read-only for a moment."""

    name = "every failing call"

    def __init__(self, world: World, *, seed: int, scratch: Path) -> None:
        super().__init__(world, seed=seed, scratch=scratch)
        self._sweep = Sweep(tuple(FAILING), seed)
        self._rng = Random(seed)

    @property
    def notes(self) -> str:
        """How many calls of each kind there were."""
        return self._sweep.notes

    def cases(self) -> Iterator[Case]:
        """Yield the points of the sweep, each with an error."""
        for point in self._sweep.points():
            yield Case(self.name, self._seed, {**point, "error": self._rng.choice(ERRORS)})

    def run(self, case: Case) -> list[str]:
        """Apply one side after the other, and let a call fail."""
        values, sides = case.values, two_sides(1)
        before, after = sides[1 - values["side"]], sides[values["side"]]
        twin = self._twin
        twin.start_from(before)
        log = self._scratch / "strace"
        log.unlink(missing_ok=True)
        fault = f"error={values['error']}:when={values['number']}"
        with injected(agent_pid(twin.subject), FAILING[values["kind"]], fault, log):
            twin.publish(twin.reference, after)
            twin.publish(twin.subject, after)
            problems = twin.compare(after)
        self._sweep.note(values, reached=was_injected(log))
        return problems


class RandomKills(_Kills):
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
