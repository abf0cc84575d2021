"""`status`: how far this machine is, judged from what the agent left on the disk and from what answers right now."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import Field

from agents.core import files
from agents.core.errors import AgentError
from agents.core.generations import Origin
from agents.inspection.document import document
from agents.kube import kubeconfig
from agents.pki.certificate import parse_leaf
from nodeagent.config import NodeAgentConfiguration
from nodeagent.inspection.probes import Answer, Answers
from nodeagent.inspection.redaction import shorten_digests
from nodeagent.inspection.state import State, Stored
from nodeagent.paths import Paths
from nodeagent.version import GARDENER_VERSION, VERSION
from osc.diff import Entry, EntryKind
from osc.pending import Pending

Outcome = Literal["done", "inProgress", "degraded", "failed"]
OriginName = Literal["ours", "older", "foreign"]

LEASE_DURATION = timedelta(seconds=40)
"""After which the API server takes a heartbeat for missing; `controllers/lease.py`."""
_EXIT: Mapping[Outcome, int] = {"done": 0, "failed": 1, "inProgress": 2, "degraded": 2}
_ORIGINS: Mapping[Origin, OriginName] = {Origin.OURS: "ours", Origin.OLDER: "older", Origin.FOREIGN: "foreign"}
_FAILING = "failing"
PHASES = {
    "starting": "the agent is starting",
    "applying": "the operating system config is being applied",
    "restarting": "the agent starts again, because its own unit or program changed",
    "waitingForNode": "everything is applied, the kubelet has not registered the Node yet",
    "waitingForTurn": "waiting until it is this node's turn: the pool goes on node by node",
    "waitingForDrain": "an update in place is due, waiting until the node is drained",
}
"""What the agent does that has not ended, in words."""
_LEFT = {
    EntryKind.CONTAINERD_CONFIG: "write containerd's configuration",
    EntryKind.FILE_CHANGED: "write file",
    EntryKind.REGISTRY: "write registry",
    EntryKind.UNIT_CHANGED: "write unit",
    EntryKind.UNIT_DELETED: "remove unit",
    EntryKind.RELOAD: "let systemd read all units again",
    EntryKind.OWN_RESTART: "restart the agent",
    EntryKind.COMMAND: "run the command of unit",
    EntryKind.REGISTRY_DELETED: "remove registry",
    EntryKind.FILE_DELETED: "remove file",
    EntryKind.IN_PLACE: "update in place:",
}
"""In the order in which most of it is done."""
_ORDER = {kind: position for position, kind in enumerate(_LEFT)}


@document
class Agent:
    """The agent's own unit and word."""

    state: Annotated[str, Field(description="ActiveState of its unit, for example active or failed; or unknown.")]
    since: Annotated[datetime | None, Field(description="Since when its unit is in this state.")] = None
    phase: Annotated[
        str,
        Field(
            description="What it said last that it does: starting, applying, restarting, waitingForNode, waitingForTurn, "
            "waitingForDrain, applied or failing; or unknown."
        ),
    ]
    said_at: Annotated[datetime | None, Field(description="When it said so.")] = None
    gardener_version: Annotated[str, Field(description="Gardener version that it speaks; empty if unknown.")] = ""
    problem: Annotated[str, Field(description="Why its state is unknown.")] = ""


@document
class Config:
    """One version of the OperatingSystemConfig."""

    checksum: Annotated[
        str | None, Field(description="What is reported on the Node for it; null if it is not on the disk.")
    ] = None
    digest: Annotated[str, Field(description="SHA-256 of the state file that holds it.")]
    at: Annotated[datetime, Field(description="When it was first asked for here, or applied to its end.")]
    origin: Annotated[
        OriginName | None,
        Field(description="Of the applied one: the newest that the agent knows, an older one, or another agent's."),
    ] = None


@document
class Failing:
    """Something that fails or is waited for."""

    item: Annotated[str, Field(description="For example unit kubelet.service or file /etc/motd.")]
    cause: str
    since: datetime
    attempt: Annotated[int, Field(description="From 1; since the agent was started.")]
    next_try: datetime | None


@document
class Left:
    """Something that is left of the current apply."""

    kind: Annotated[str, Field(description="For example file-changed or command.")]
    name: Annotated[str, Field(description="Path, unit or registry; empty where there is only one.")]


@document
class DriftItem:
    """Something that somebody else changed."""

    reason: Annotated[str, Field(description="As in the agent's events, for example FileMismatch.")]
    message: str


@document
class Drift:
    """What of the applied OperatingSystemConfig is no longer so."""

    known: Annotated[bool, Field(description="False if it could not be looked at.")]
    items: tuple[DriftItem, ...] = ()
    problem: str = ""


@document
class Heartbeat:
    """The Lease of this node."""

    age_seconds: Annotated[float | None, Field(description="Since it was renewed; null if nobody knows.")] = None
    source: Annotated[
        Literal["agent", "file", "unknown"],
        Field(description="Who says so: the running agent, or what it wrote down before it ended."),
    ] = "unknown"
    problem: str = ""


@document
class Certificate:
    """The agent's client certificate."""

    expires: Annotated[
        datetime | None, Field(description="Null if it is not known, or a configured kubeconfig has none.")
    ] = None
    expired: bool | None = None
    problem: Annotated[str, Field(description="Why it is not known.")] = ""


@document
class Health:
    """What somebody says about himself."""

    healthy: Annotated[bool | None, Field(description="Null if nothing is known.")]
    detail: Annotated[str, Field(description="Version, or why not.")] = ""


@document
class FailedUnit:
    """A unit of the applied OperatingSystemConfig that systemd calls failed."""

    unit: str
    state: Annotated[str, Field(description="Active state and sub state.")]


@document
class Status:
    """The state of one machine at one moment."""

    outcome: Annotated[Outcome, Field(description="Exit codes: done 0, failed 1, inProgress and degraded 2.")]
    reasons: Annotated[tuple[str, ...], Field(description="Why it is not done, the weightiest first.")] = ()
    observed_at: datetime
    version: Annotated[str, Field(description="Of this program.")] = VERSION
    gardener_version: Annotated[str, Field(description="That this program speaks.")] = GARDENER_VERSION
    secret_name: Annotated[
        str | None, Field(description="Secret in kube-system with the OperatingSystemConfig, as configured.")
    ]
    agent: Agent
    desired: Annotated[Config | None, Field(description="The last valid one that the agent saw; null if none.")]
    applied: Annotated[Config | None, Field(description="The last one that was applied to its end; null if none.")]
    left: tuple[Left, ...]
    failing: tuple[Failing, ...]
    failed_units: tuple[FailedUnit, ...]
    drift: Drift
    heartbeat: Heartbeat
    certificate: Certificate
    containerd: Health
    kubelet: Health
    problems: Annotated[
        dict[str, str], Field(description="State files that are there and cannot be used, by path.")
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Reason:
    outcome: Outcome
    text: str


def exit_code(found: Status) -> int:
    """Return the exit code."""
    return _EXIT[found.outcome]


def gather(state: State, answers: Answers, certificate: Certificate, *, now: datetime) -> Status:
    """Put together what was read and what was answered, and judge it; pure.

    Args:
        state: of the disk.
        answers: of the machine.
        certificate: see `read_certificate`.
        now: aware UTC datetime.
    """
    pending = state.pending
    found = Status(
        outcome="done",
        observed_at=now,
        secret_name=state.config.controllers.operating_system_config.secret_name if state.config else None,
        agent=_agent(state, answers),
        desired=_config(state.desired, None if pending is None else pending.checksum),
        applied=_config(state.applied, _applied_checksum(state)),
        left=left_of(pending),
        failing=_failing(state),
        failed_units=tuple(
            FailedUnit(unit=unit.name, state=unit.description) for unit in answers.failed_units.value or ()
        ),
        drift=_drift(answers, looked=state.applied is not None),
        heartbeat=_heartbeat(state, answers, now),
        certificate=certificate,
        containerd=_health(answers.containerd),
        kubelet=_health(answers.kubelet),
        problems=dict(state.problems),
    )
    reasons = list(_reasons(found, unfinished=pending is not None and pending.unfinished))
    return replace(found, outcome=_outcome(reasons), reasons=tuple(reason.text for reason in reasons))


def read_certificate(paths: Paths, config: NodeAgentConfiguration | None, now: datetime) -> Certificate:
    """Return until when the client certificate on the disk is valid; blocking, never raises.

    Args:
        paths: where the agent's own kubeconfig is.
        config: may name another one, which needs no certificate.
        now: aware UTC datetime.
    """
    configured = config.client_connection.kubeconfig if config is not None else ""
    path = paths.root / configured.lstrip("/") if configured else paths.kubeconfig
    try:
        content = files.read_mounted(path)
        if content is None:
            return Certificate(problem="there is no kubeconfig yet")
    except files.FileError as error:
        return Certificate(problem=str(error.fields.get("problem") or error.message))
    try:
        access = kubeconfig.parse(content, directory=path.parent, allow_token_file=bool(configured))
        pem = access.credentials.client_certificate
        if not pem:
            return Certificate(problem="" if configured else "the kubeconfig has no client certificate")
        leaf = parse_leaf(pem)
    except AgentError as error:
        return Certificate(problem=error.message)
    return Certificate(expires=leaf.not_after, expired=leaf.expired(now))


def _outcome(reasons: list[_Reason]) -> Outcome:
    return reasons[0].outcome if reasons else "done"


def _reasons(found: Status, *, unfinished: bool) -> Iterator[_Reason]:
    """Yield why it is not done, the weightiest first: failed, agent away, in progress, degraded."""
    broken = [f"{path}: {problem}" for path, problem in found.problems.items()]
    # An agent that runs goes on without a file that is damaged; where it does not, nothing can be told.
    serious = found.applied is None or found.agent.state != "active"
    yield from (_Reason("failed", text) for text in _failures(found))
    yield from (_Reason("failed", text) for text in broken if serious)
    agent_away = found.agent.state not in ("active", "reloading", "unknown")
    if agent_away:
        yield _Reason("degraded", f"the agent does not run: its unit is {found.agent.state}")
    yield from (_Reason("inProgress", text) for text in _progress(found, unfinished=unfinished))
    yield from (_Reason("degraded", text) for text in broken if not serious)
    yield from (_Reason("degraded", text) for text in _degradations(found, agent_away=agent_away))


def _failures(found: Status) -> Iterator[str]:
    if found.agent.phase == _FAILING:
        names = ", ".join(item.item for item in found.failing) or "the agent names no item"
        yield f"failing: {names}"
    if found.agent.state == "failed":
        yield "the agent's unit has failed"


def _progress(found: Status, *, unfinished: bool) -> Iterator[str]:
    if found.applied is None:
        yield "no operating system config was applied here yet"
    if found.agent.phase in PHASES:
        yield PHASES[found.agent.phase]
    elif found.failing and found.agent.phase != _FAILING:
        yield f"waiting for {', '.join(item.item for item in found.failing)}"
    if unfinished:
        left = len(found.left)
        yield f"{left} item{'' if left == 1 else 's'} of the current apply left"


def _degradations(found: Status, *, agent_away: bool) -> Iterator[str]:
    if found.agent.problem:
        yield f"systemd: {found.agent.problem}"
    if found.applied is not None and found.applied.origin == "older":
        yield "last-applied is an older one that was brought back"
    failing = {item.item for item in found.failing}
    yield from (
        f"unit {unit.unit} has failed: {unit.state}"
        for unit in found.failed_units
        if f"unit {unit.unit}" not in failing
    )
    if found.drift.items:
        yield f"{len(found.drift.items)} item{'s' if len(found.drift.items) > 1 else ''} drifted"
    elif not found.drift.known and found.applied is not None:
        yield f"drift is unknown: {found.drift.problem}"
    age = found.heartbeat.age_seconds
    if age is None:
        if not agent_away:
            yield f"heartbeat is unknown: {found.heartbeat.problem}"
    elif age > LEASE_DURATION.total_seconds():
        yield f"heartbeat is {age:.0f} s old"
    if found.certificate.expired:
        yield "the client certificate has expired; a bootstrap token gets another one"
    elif found.certificate.problem:
        yield f"client certificate: {found.certificate.problem}"
    for name, health in (("containerd", found.containerd), ("kubelet", found.kubelet)):
        if not health.healthy:
            yield f"{name}: {health.detail}"


def _agent(state: State, answers: Answers) -> Agent:
    unit, board = answers.agent.value, state.board
    phase, said_at = (board.phase, state.board_written) if board is not None else ("unknown", None)
    since = unit.state_changed if unit is not None else None
    if unit is not None and unit.active_state == "active" and since and said_at and said_at < since:
        phase = "starting"  # what the process before it said counts no more
    return Agent(
        state=(unit.active_state or "unknown") if unit is not None else "unknown",
        since=since,
        phase=phase,
        said_at=said_at,
        gardener_version=board.version if board is not None else "",
        problem=answers.agent.problem,
    )


def _config(stored: Stored | None, checksum: str | None) -> Config | None:
    if stored is None:
        return None
    origin = _ORIGINS[stored.origin] if stored.origin is not None else None
    return Config(checksum=checksum or None, digest=stored.digest, at=stored.written, origin=origin)


def _applied_checksum(state: State) -> str | None:
    """Return the checksum of last-applied: the journal's, if that ended with it, else the one before."""
    pending = state.pending
    if pending is None or state.applied is None:
        return None
    return pending.applied if pending.unfinished else pending.checksum


def _failing(state: State) -> tuple[Failing, ...]:
    if state.board is None:
        return ()
    return tuple(
        Failing(item=item.name, cause=item.cause, since=item.since, attempt=item.attempt, next_try=item.next_try)
        for item in state.board.items
    )


def left_of(pending: Pending | None) -> tuple[Left, ...]:
    """Return what an apply has left to do, about in the order in which it will be done."""
    entries = pending.changes.entries() if pending is not None else frozenset[Entry]()
    return tuple(
        Left(kind=entry.kind.value, name=entry.key)
        for entry in sorted(entries, key=lambda entry: (_ORDER[entry.kind], entry.key))
    )


def describe_left(left: Left) -> str:
    """Return in words what is left."""
    return f"{_LEFT[EntryKind(left.kind)]} {left.name}".strip()


def _drift(answers: Answers, *, looked: bool) -> Drift:
    findings = answers.drift.value
    if not looked:
        return Drift(known=False, problem="nothing was applied here yet")
    if findings is None:
        return Drift(known=False, problem=answers.drift.problem)
    return Drift(
        known=True,
        items=tuple(DriftItem(reason=item.reason, message=shorten_digests(item.message)) for item in findings),
    )


def _heartbeat(state: State, answers: Answers, now: datetime) -> Heartbeat:
    if answers.lease_age.value is not None:
        return Heartbeat(age_seconds=round(answers.lease_age.value, 1), source="agent")
    problem = answers.lease_age.problem or "there was none yet since the agent was started"
    if state.board is None or state.board.heartbeat is None:
        return Heartbeat(problem=problem)
    age = max(0.0, (now - state.board.heartbeat).total_seconds())
    return Heartbeat(age_seconds=round(age, 1), source="file", problem=problem)


def _health(answer: Answer[str]) -> Health:
    if answer.value is not None:
        return Health(healthy=True, detail=answer.value)
    return Health(healthy=False, detail=answer.problem)
