"""Pods of the seed, as far as it shows in them whether anybody still needs them."""

from agents.kube.objects import Items, KubeObject, ObjectMeta, Projection, Text
from agents.kube.resource import Resource


class OwnerReference(Projection):
    """Who an object belongs to."""

    kind: Text = ""


class PodMeta(ObjectMeta):
    """As of every object, and who it belongs to."""

    deletion_grace_period_seconds: int | None = None
    owner_references: Items[OwnerReference] = ()


class PodCondition(Projection):
    """One observation."""

    type: Text = ""
    status: Text = ""


class PodStatus(Projection):
    """How a pod ended, or is about to."""

    phase: Text = ""
    reason: Text = ""
    conditions: Items[PodCondition] = ()


class Pod(KubeObject):
    """Containers that run together."""

    metadata: PodMeta = PodMeta()
    status: PodStatus = PodStatus()


PODS = Resource("", "v1", "pods", "Pod", namespaced=True, model=Pod)
