"""`diagnose`: the chain from the configuration to the kubelet; of the first link that is broken one cause and one next step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from agents.inspection.document import document
from agents.inspection.output import Colour, Style, printable
from nodeagent.version import GARDENER_VERSION, VERSION

LinkName = Literal[
    "config",
    "time",
    "dns",
    "tcp",
    "tls",
    "credentials",
    "authorization",
    "secret",
    "validation",
    "disk",
    "systemd",
    "containerd",
    "kubelet",
]
State = Literal["ok", "broken", "notLooked"]

CHAIN: tuple[LinkName, ...] = (
    *("config", "time", "dns", "tcp", "tls", "credentials", "authorization", "secret", "validation"),
    *("disk", "systemd", "containerd", "kubelet"),
)
_WELL, _BROKEN = 0, 1


@dataclass(frozen=True, slots=True)
class Broken:
    """What is wrong, and what to do next; neither has a secret in it."""

    cause: str
    next_step: str


@dataclass(frozen=True, slots=True)
class Fine:
    """What was found, in a few words."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class NotLooked:
    """Why it was not looked at."""

    reason: str


Finding = Broken | Fine | NotLooked


@document
class Link:
    """One link of the chain."""

    name: LinkName
    state: State
    detail: Annotated[str, Field(description="What was found, the cause, or why it was not looked at.")] = ""
    next_step: Annotated[str, Field(description="What to do, where it is broken.")] = ""


@document
class Diagnosis:
    """All links, and the first that is broken."""

    broken: Annotated[LinkName | None, Field(description="The first broken link; null if none is.")]
    cause: Annotated[str, Field(description="Why; empty if nothing is broken.")] = ""
    next_step: Annotated[str, Field(description="The one thing to do next; empty if nothing is broken.")] = ""
    observed_at: datetime
    version: Annotated[str, Field(description="Of this program.")] = VERSION
    gardener_version: Annotated[str, Field(description="That this program speaks.")] = GARDENER_VERSION
    links: Annotated[tuple[Link, ...], Field(description="In the order of the chain.")]


def judge(findings: Mapping[LinkName, Finding], *, now: datetime) -> Diagnosis:
    """Return the diagnosis: the first broken link is the cause, whatever else is broken behind it."""
    links = tuple(_link(name, findings.get(name, NotLooked("a link before it is broken"))) for name in CHAIN)
    first = next((link for link in links if link.state == "broken"), None)
    return Diagnosis(
        broken=first.name if first else None,
        cause=first.detail if first else "",
        next_step=first.next_step if first else "",
        observed_at=now,
        links=links,
    )


def exit_code(found: Diagnosis) -> int:
    """Return the exit code."""
    return _WELL if found.broken is None else _BROKEN


def lines(found: Diagnosis, style: Style) -> Iterator[str]:
    """Yield the text."""
    if found.broken is None:
        yield f"{style('nothing is broken', 'green')}; what the agent is doing is shown by: gardener-node-agent status"
    else:
        yield f"{style('broken', 'red')}: {found.broken}"
        yield f"cause: {printable(found.cause)}"
        yield f"next:  {printable(found.next_step)}"
    yield ""
    yield from _table(found.links, style)


def _table(links: Sequence[Link], style: Style) -> Iterator[str]:
    words: Mapping[State, tuple[str, Colour | None]] = {
        "ok": ("ok", "green"),
        "broken": ("broken", "red"),
        "notLooked": ("not looked at", None),
    }
    for link in links:
        word, colour = words[link.state]
        yield f"{link.name:<14}{style(word, colour)}{': ' if link.detail else ''}{printable(link.detail)}"


def _link(name: LinkName, finding: Finding) -> Link:
    if isinstance(finding, Broken):
        return Link(name=name, state="broken", detail=finding.cause, next_step=finding.next_step)
    if isinstance(finding, NotLooked):
        return Link(name=name, state="notLooked", detail=finding.reason)
    return Link(name=name, state="ok", detail=finding.detail)
