"""Whether a gardenlet may work with a garden."""

from random import Random

import pytest

from agents.kube.client import Client
from gardenlet.apis.core_objects import CONFIG_MAPS
from gardenlet.bootstrap.version_skew import VersionSkew, check_version_skew
from tests.support.fake_api import FakeApi


async def check(own: str, data: dict[str, str] | None) -> str:
    """Compare with a garden whose ConfigMap says this; None for no ConfigMap."""
    api = FakeApi()
    if data is not None:
        metadata = {"name": "gardener-info", "namespace": "gardener-system-public"}
        api.put(CONFIG_MAPS, {"metadata": metadata, "data": data})
    return await check_version_skew(Client(transport=api, rng=Random(1)), own)


@pytest.mark.parametrize(
    ("own", "garden", "fits"),
    [
        ("v1.150.0", "v1.150.0", True),
        ("v1.150.0", "v1.150.3", True),
        ("v1.150.1", "v1.150.0", False),
        ("v1.151.0", "v1.150.9", False),
        ("v1.148.9", "v1.150.0", True),
        ("v1.147.9", "v1.150.0", False),
        ("v1.150.0-dev", "v1.150.0", True),
        ("v1.150.0", "v1.150.0-dev-abcdef+1", True),
        ("v1.150.0", "v2.0.0", False),
        ("v1.150.0", "latest", False),
    ],
)
async def test_versions(own: str, garden: str, fits: bool) -> None:
    """Contract core 1.4: never newer, patch level included; at most two minors older; suffixes do not count."""
    data = {"gardenerAPIServer": f"version: {garden}\nworkloadIdentityIssuerURL: https://x\n"}
    if fits:
        assert await check(own, data) == garden
        return
    with pytest.raises(VersionSkew):
        await check(own, data)


@pytest.mark.parametrize(
    "data", [None, {}, {"gardenerAPIServer": ""}, {"gardenerAPIServer": "[]"}, {"gardenerAPIServer": "{version: ["}]
)
async def test_a_garden_that_does_not_say_its_version(data: dict[str, str] | None) -> None:
    """Contract core 1.2, W1: what is missing in the garden is waited for, and named."""
    with pytest.raises(VersionSkew, match="gardener-info"):
        await check("v1.150.0", data)
