"""`plan`: what an OperatingSystemConfig would change on this machine, and what that disrupts.

Differences and their order are the agent's own, `osc.diff` and `osc.plan`; here they are only looked at. What the agent would
read from the API server or from container images is not known here, and said so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from agents.inspection.document import document
from nodeagent.inspection.content import Content


class Disruption(StrEnum):
    """What a change interrupts, the least first."""

    NONE = "none"
    RELOAD = "reload"
    """systemd reads its units again."""
    SERVICE_RESTART = "serviceRestart"
    KUBELET_RESTART = "kubeletRestart"
    """Containers go on."""
    PODS_DELETED = "podsDeleted"
    REBOOT = "reboot"


_ORDER = {disruption: number for number, disruption in enumerate(Disruption)}


def worst(disruptions: "list[Disruption]") -> Disruption:
    """Return the one that interrupts most; none of none."""
    return max(disruptions, key=_ORDER.__getitem__, default=Disruption.NONE)


@document
class Item:
    """One change."""

    kind: Annotated[
        str,
        Field(description="file, unitFile, dropIn, unit, registry, containerdConfig, systemd, agent or inPlaceUpdate."),
    ]
    name: Annotated[str, Field(description="Path, unit, upstream or part.")]
    action: Annotated[
        str,
        Field(
            description="create, update, setMode, remove, restore (what was there before an OperatingSystemConfig), "
            "fetch (from an image or a Secret), enable, disable, restart, stop, reload or update."
        ),
    ]
    disruption: Annotated[Disruption, Field(description="Of this change and of the commands that it leads to.")]
    before: Annotated[Content | None, Field(description="What is there; null if nothing is, or it is no file.")] = None
    after: Annotated[Content | None, Field(description="What will be there; null if nothing, or not known.")] = None
    diff: Annotated[
        str | None, Field(description="Unified diff; null where the content is not for everybody, or is no text.")
    ] = None
    note: Annotated[str, Field(description="What else there is to know; may be empty.")] = ""


@document
class UnitCommand:
    """A unit that is restarted or stopped."""

    unit: str
    command: Annotated[str, Field(description="restart or stop.")]
    disruption: Disruption
    reasons: tuple[str, ...]


@document
class Plan:
    """What would be done, in the agent's order."""

    source: Annotated[str, Field(description="File of the OperatingSystemConfig.")]
    checksum: Annotated[str, Field(description="What the Node would report for it.")]
    resumed: Annotated[bool, Field(description="Whether an unfinished apply of it would be gone on with.")]
    disruption: Annotated[Disruption, Field(description="The worst of all.")]
    items: tuple[Item, ...]
    commands: Annotated[tuple[UnitCommand, ...], Field(description="Units that are restarted or stopped, and why.")]
    unchanged: Annotated[
        int, Field(description="Files that the agent would write and that already are as they should be.")
    ] = 0
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Effects:
    """What becomes of the steps, collected one after another.

    Attributes:
        changed: ids of the steps that change bytes, or may.
    """

    items: list[Item] = field(default_factory=list)
    commands: list[UnitCommand] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)
    unchanged: int = 0
    disruptions: Mapping[str, Disruption] = field(default_factory=dict)
    """Of each file, by the units that use it."""
