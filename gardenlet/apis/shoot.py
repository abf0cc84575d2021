"""The Shoot, as far as it is read.

Source: gardener pkg/apis/core/v1beta1/types_shoot.go.
"""

from typing import Any

from agents.kube.objects import Items, KubeObject, Projection, Text
from agents.kube.resource import Resource
from gardenlet.apis.core import Condition, LastOperation


class Gardener(Projection):
    """Who wrote a status."""

    version: Text = ""


class Provider(Projection):
    """Where it runs; without workers there are no nodes."""

    workers: Items[dict[str, Any]] = ()


class ShootSpec(Projection):
    """What is wanted."""

    seed_name: Text = ""
    provider: Provider = Provider()


class ShootStatus(Projection):
    """What several components report."""

    seed_name: Text = ""
    last_operation: LastOperation | None = None
    constraints: Items[Condition] = ()
    gardener: Gardener = Gardener()


class Shoot(KubeObject):
    """A cluster whose control plane a seed hosts."""

    spec: ShootSpec = ShootSpec()
    status: ShootStatus = ShootStatus()

    @property
    def responsible_seed(self) -> str:
        """Return whose gardenlet reconciles it: while it migrates the seed that it leaves; gardener pkg/utils/gardener/migration.go."""
        return self.status.seed_name or self.spec.seed_name


SHOOTS = Resource("core.gardener.cloud", "v1beta1", "shoots", "Shoot", namespaced=True, model=Shoot)
