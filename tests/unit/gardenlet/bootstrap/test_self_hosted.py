"""A seed that is a self-hosted shoot is checked before it is registered."""

from random import Random

import pytest

from agents.kube.client import Client
from gardenlet.apis.core_objects import NAMESPACES
from gardenlet.apis.shoot import SHOOTS
from gardenlet.bootstrap.self_hosted import MANAGED_SEEDS, NotThatShoot, check_self_hosted
from tests.support.fake_api import FakeApi

OWN = "v1.150.0"


async def check(version: str | None, *, managed: bool = True, shoot: bool = True) -> bool:
    """Check a seed; a garden without the Shoot for no version."""
    seed, garden = FakeApi(), FakeApi()
    seed.put(
        NAMESPACES,
        {"metadata": {"name": "kube-system", "labels": {"gardener.cloud/role": "shoot"} if shoot else {}}},
    )
    metadata = {"name": "s", "namespace": "garden"}
    if version is not None:
        garden.put(SHOOTS, {"metadata": metadata, "status": {"gardener": {"version": version}}})
    if managed:
        garden.put(MANAGED_SEEDS, {"metadata": metadata})
    ours, theirs = (Client(transport=api, rng=Random(1)) for api in (seed, garden))
    return await check_self_hosted(ours, theirs, "s", OWN)


async def test_other_seeds_need_nothing() -> None:
    """Contract core 1.2: a seed that is no shoot is not asked about."""
    assert await check(None, managed=False, shoot=False) is False


@pytest.mark.parametrize("version", [OWN, "v1.150.1", "v1.153.9"])
async def test_versions_that_fit(version: str) -> None:
    """Contract core 1.4: not newer than the shoot's own gardenlet, and at most three minors older."""
    assert await check(version) is True


@pytest.mark.parametrize(
    ("version", "managed", "named"),
    [
        (None, True, "that the garden lacks"),
        (OWN, False, "without a ManagedSeed"),
        ("v1.149.9", True, "must not be newer"),
        ("v1.154.0", True, "more than 3 minor"),
        ("", True, "not readable"),
    ],
)
async def test_what_does_not_fit_waits(version: str | None, managed: bool, named: str) -> None:
    """Contract core 1.2, 1.4: each lack is named, and may be mended while we wait."""
    with pytest.raises(NotThatShoot, match=named):
        await check(version, managed=managed)
