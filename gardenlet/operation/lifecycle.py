"""Which Extensions a shoot or a seed has, and when in a flow each of them is dealt with.

Source: gardener pkg/component/extensions/extension/filters.go, pkg/component/shared/extension.go (contract controllers 2.6).
"""

from collections.abc import Iterable
from enum import StrEnum

from agents.kube.objects import Items, Projection, Text

KIND = "Extension"


class Phase(StrEnum):
    """A place in a flow."""

    BEFORE_KUBE_API_SERVER = "BeforeKubeAPIServer"
    AFTER_KUBE_API_SERVER = "AfterKubeAPIServer"
    AFTER_WORKER = "AfterWorker"


class Act(StrEnum):
    """What is done to an Extension."""

    RECONCILE = "reconcile"
    DELETE = "delete"
    MIGRATE = "migrate"


DEFAULT_PHASES = {
    Act.RECONCILE: Phase.AFTER_KUBE_API_SERVER,
    Act.DELETE: Phase.BEFORE_KUBE_API_SERVER,
    Act.MIGRATE: Phase.BEFORE_KUBE_API_SERVER,
}


class Lifecycle(Projection):
    """What a ControllerRegistration says about the places; empty where it says nothing."""

    reconcile: Text = ""
    delete: Text = ""
    migrate: Text = ""


class ControllerResource(Projection):
    """One kind and type of extension object that a ControllerRegistration brings."""

    kind: str
    type: str
    auto_enable: Items[str] = ()
    """Types of clusters that have it without asking: `shoot`, `seed`, `garden`."""
    workerless_supported: bool | None = None
    lifecycle: Lifecycle | None = None


class RequestedExtension(Projection):
    """What the spec of a Shoot or Seed says about one Extension."""

    type: str
    disabled: bool | None = None


def phase_of(resource: ControllerResource, act: Act) -> str:
    """Return where in a flow something is done to an Extension."""
    configured = "" if resource.lifecycle is None else getattr(resource.lifecycle, act.value)
    return configured or DEFAULT_PHASES[act]


def in_phase(resources: Iterable[ControllerResource], act: Act, phase: Phase) -> set[str]:
    """Return the types of Extensions that something is done to at a place in a flow."""
    return {item.type for item in resources if item.kind == KIND and phase_of(item, act) == phase}


def wanted_extensions(
    resources: Iterable[ControllerResource],
    requested: Iterable[RequestedExtension],
    *,
    cluster_type: str,
    workerless: bool = False,
) -> set[str]:
    """Return the types of Extensions that a cluster has: those that come by themselves and those asked for, without the disabled ones."""
    requested = tuple(requested)
    automatic = {
        item.type
        for item in resources
        if item.kind == KIND and cluster_type in item.auto_enable and (item.workerless_supported or not workerless)
    }
    asked = {item.type for item in requested if not item.disabled}
    return (automatic | asked) - {item.type for item in requested if item.disabled}


def stale_extensions(existing: Iterable[str], wanted: Iterable[str]) -> set[str]:
    """Return the types of Extensions that are there and should not be."""
    return set(existing) - set(wanted)
