"""The Seed, as far as it is read.

Source: gardener pkg/apis/core/v1beta1/types_seed.go.
"""

from agents.kube.objects import Items, KubeObject, Projection
from agents.kube.resource import Resource
from gardenlet.apis.core import Condition


class SeedStatus(Projection):
    """What several components report."""

    conditions: Items[Condition] = ()


class Seed(KubeObject):
    """A cluster that hosts control planes."""

    status: SeedStatus = SeedStatus()


SEEDS = Resource("core.gardener.cloud", "v1beta1", "seeds", "Seed", namespaced=False, model=Seed)
