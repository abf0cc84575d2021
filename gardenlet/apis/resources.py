"""`resources.gardener.cloud/v1alpha1`: what the resource manager applies for us, and how it says that it went."""

from pydantic import Field

from agents.kube.objects import Items, KubeObject, Projection, Text
from agents.kube.resource import Resource
from gardenlet.apis.core import Condition

APPLIED = "ResourcesApplied"
HEALTHY = "ResourcesHealthy"
PROGRESSING = "ResourcesProgressing"


class ManagedResourceSpec(Projection):
    """What is to be applied, as far as it is read."""

    resource_class: Text = Field(default="", alias="class")
    """Who applies it; empty for the cluster of a shoot."""


class ManagedResourceStatus(Projection):
    """What the resource manager reports."""

    observed_generation: int = 0
    conditions: Items[Condition] = ()


class ManagedResource(KubeObject):
    """Objects that the resource manager applies and looks after."""

    spec: ManagedResourceSpec = Field(default_factory=ManagedResourceSpec)
    status: ManagedResourceStatus = Field(default_factory=ManagedResourceStatus)


MANAGED_RESOURCES = Resource(
    "resources.gardener.cloud",
    "v1alpha1",
    "managedresources",
    "ManagedResource",
    namespaced=True,
    model=ManagedResource,
)
