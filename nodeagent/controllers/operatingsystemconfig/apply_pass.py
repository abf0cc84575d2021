"""The bookkeeping of a pass over a plan: what was done, what failed, what waits, and what comes out of it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agents.core.errors import AgentError, RetriableError
from agents.core.logging import get_logger
from osc.plan import (
    ConfigureContainerd,
    ExtractFile,
    Plan,
    ReloadDaemon,
    RemoveFile,
    RemoveRegistry,
    RestartAgent,
    Step,
    WriteFile,
    WriteRegistry,
)

log = get_logger(__name__)


class ApplyTooSlow(RetriableError):
    """A pass over files and units did not end in time."""


@dataclass(slots=True)
class Outcome:
    """What became of a plan."""

    failed: dict[str, AgentError] = field(default_factory=dict)
    """By the name of the item, as operators read it: `file /etc/motd`, `unit kubelet.service`."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Items that are held back by a failed one, or have not ended; and what is known of the latter."""
    restart: bool = False
    """The process has to end, so that systemd starts it again."""
    steps: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many steps of each verb there were, by result: `done`, `failed` or `unfinished`."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long those of each verb took."""


@dataclass(slots=True)
class Pass:
    """One pass over a plan: what is done, what failed, and what that holds back."""

    plan: Plan
    contents: Mapping[str, bytes | AgentError]
    failed: dict[str, tuple[Step, AgentError]] = field(default_factory=dict)
    unfinished: dict[str, tuple[Step, str]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    held: frozenset[str] = frozenset()
    changed: set[str] = field(default_factory=set)
    restart: bool = False
    stopped: AgentError | None = None
    """Why the pass did not come to its end: its time was over, or the journal cannot be written."""
    seconds: dict[str, float] = field(default_factory=dict)
    own_watched: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        watched = (step.watched for step in self.plan.steps if isinstance(step, RestartAgent))
        self.own_watched = frozenset[str]().union(*watched)

    def take_extractions(self) -> list[ExtractFile]:
        """Return the files out of images; they are unfinished until they were fetched."""
        found = [step for step in self.plan.steps if isinstance(step, ExtractFile)]
        self.unfinished.update({step.id: (step, "") for step in found})
        self.taken.update(step.id for step in found)
        return found

    def take(self, steps: Iterable[Step]) -> list[Step]:
        """Return the steps that can be carried out now; each is returned once."""
        found = [
            step
            for step in steps
            if step.id not in self.taken | self.held and step.id not in self.unfinished and not self.is_blocked(step)
        ]
        self.taken.update(step.id for step in found)
        return found

    def took(self, verb: str, seconds: float) -> None:
        """Note how long steps of a verb took."""
        self.seconds[verb] = self.seconds.get(verb, 0.0) + seconds

    def fail(self, step: Step, error: AgentError) -> None:
        """Note a failed step; what needs it is blocked from now on."""
        self.failed.setdefault(step.id, (step, error))
        log.error("Step failed", step=step.id, error=error)

    def is_blocked(self, step: Step) -> bool:
        """Tell whether a step needs one that failed or has not ended."""
        stopped = {*self.failed, *self.unfinished}
        if not stopped:
            return False
        return step.id in self.plan.blocked(stopped)

    def outcome(self) -> Outcome:
        """Return what became of the plan, in operators' words."""
        stopped = {*self.failed, *self.unfinished}
        blocked = self.plan.blocked(stopped) if stopped else frozenset()
        whole = {"the whole pass": self.stopped} if self.stopped is not None else {}
        return Outcome(
            failed={**{_describe(step): error for step, error in self.failed.values()}, **whole},
            waiting={
                _describe(step): self.unfinished.get(step.id, (step, ""))[1]
                for step in self.plan.steps
                if step.id in blocked or step.id in self.unfinished
            },
            restart=self.restart,
            steps=Counter((step.verb, self._result(step)) for step in self.plan.steps if step.id in self.taken),
            seconds=self.seconds,
        )

    def _result(self, step: Step) -> str:
        return "failed" if step.id in self.failed else "unfinished" if step.id in self.unfinished else "done"


def _describe(step: Step) -> str:
    """Return the item of a step, as operators read it."""
    if isinstance(step, WriteFile | RemoveFile):
        return f"file {step.name}"
    if isinstance(step, ReloadDaemon):
        return "systemd daemon-reload"
    if isinstance(step, ConfigureContainerd):
        return "configuration of containerd"
    if isinstance(step, WriteRegistry | RemoveRegistry):
        return f"registry {step.name}"
    return f"unit {step.name}" if step.name else "own restart"
