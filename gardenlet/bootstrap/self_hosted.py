"""A seed that is a self-hosted shoot itself: the garden must know it as such, and its own gardenlet must fit ours.

Source: gardener cmd/gardenlet/app/app.go, pkg/gardenlet/bootstrappers/verify_version.go (contract core 1.2 step 8, 1.4).
"""

from agents.core.errors import RetriableError
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import Forbidden, NotFound
from agents.kube.objects import Document
from agents.kube.resource import Resource
from gardenlet.apis.shoot import SHOOTS
from gardenlet.bootstrap.version_skew import misfit
from gardenlet.handover import is_self_hosted_shoot

log = get_logger(__name__)

GARDEN = "garden"
MOST_MINORS = 3
MANAGED_SEEDS = Resource(
    "seedmanagement.gardener.cloud", "v1alpha1", "managedseeds", "ManagedSeed", namespaced=True, model=Document
)


class NotThatShoot(RetriableError):
    """The garden does not have what a self-hosted seed needs, or its versions do not fit; it waits."""


async def check_self_hosted(seed: Client, garden: Client, seed_name: str, own: str) -> bool:
    """Check what a seed on a self-hosted shoot needs; returns whether this is one.

    Raises:
        NotThatShoot: Shoot or ManagedSeed are missing, or the versions do not fit (retriable).
        ApiError: seed or garden do not answer.
    """
    if not await is_self_hosted_shoot(seed):
        return False
    try:
        shoot = await garden.get(SHOOTS, seed_name, namespace=GARDEN)
    except (NotFound, Forbidden) as error:
        raise NotThatShoot(
            "seed is a self-hosted shoot that the garden lacks", shoot=f"{GARDEN}/{seed_name}"
        ) from error
    try:
        await garden.get(MANAGED_SEEDS, seed_name, namespace=GARDEN)
    except (NotFound, Forbidden) as error:
        raise NotThatShoot(
            "seed is a self-hosted shoot without a ManagedSeed", managedSeed=f"{GARDEN}/{seed_name}"
        ) from error
    version = shoot.status.gardener.version
    if (problem := misfit(own, version, most_minors=MOST_MINORS)) is not None:
        raise NotThatShoot(problem, gardenlet=own, shootsOwn=version)
    log.info("This seed is a self-hosted shoot", shoot=f"{GARDEN}/{seed_name}", version=version)
    return True
