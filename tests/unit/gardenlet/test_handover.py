"""Controllers that are another's where the seed is more than a seed run exactly while they are ours."""

import asyncio
from random import Random

import pytest

from agents.kube.client import Client
from agents.kube.errors import ApiError, NotFound, ServerError
from agents.runtime.manager import End
from gardenlet.apis.core_objects import NAMESPACES
from gardenlet.apis.networking import GARDENS
from gardenlet.handover import GARDEN, SHOOT, HandOver, owner
from tests.support.fake_api import FakeApi
from tests.support.tasks import running


class Controllers:
    """How often they were started and ended."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def start(self) -> list[End]:
        """Start, and return what ends them."""
        self.log.append("start")
        return [lambda: self.log.append("end")]


@pytest.fixture
def controllers() -> Controllers:
    """Nothing was started yet."""
    return Controllers()


@pytest.fixture
def hand_over(client: Client, api: FakeApi, controllers: Controllers) -> HandOver:
    """Over a seed that is nothing else."""
    system(api)
    return HandOver(seed=client, start=controllers.start, rng=Random(1))


def system(api: FakeApi, role: str = "") -> None:
    """Write the namespace kube-system."""
    labels = {"gardener.cloud/role": role} if role else {}
    api.put(NAMESPACES, {"metadata": {"name": "kube-system", "labels": labels}})


def garden(api: FakeApi) -> None:
    """Make the seed a garden."""
    api.put(GARDENS, {"metadata": {"name": "local"}})


async def test_a_garden_takes_them_and_gives_them_back(
    api: FakeApi, hand_over: HandOver, controllers: Controllers
) -> None:
    """Contract core 8, 13 W35: looked at once a minute; only these controllers end, and they come back with the reason's end."""
    await hand_over.look()
    async with running(hand_over.run):
        await asyncio.sleep(300)
        assert controllers.log == ["start"]
        garden(api)
        await asyncio.sleep(70)
        assert controllers.log == ["start", "end"]
        api.remove(GARDENS, "local")
        await asyncio.sleep(70)
        assert controllers.log == ["start", "end", "start"]
        system(api, "shoot")
        await asyncio.sleep(70)
        assert controllers.log[3:] == ["end"]


async def test_a_garden_from_the_start_never_gets_them(
    api: FakeApi, hand_over: HandOver, controllers: Controllers
) -> None:
    """Contract core 8: nothing is started before it is known whose seed this is."""
    garden(api)
    await hand_over.look()
    async with running(hand_over.run):
        await asyncio.sleep(600)
    assert controllers.log == []


@pytest.mark.parametrize("error", [ServerError("broken", status=500), NotFound("no kube-system", status=404)])
async def test_what_cannot_be_told_changes_nothing(
    api: FakeApi, hand_over: HandOver, controllers: Controllers, error: ApiError
) -> None:
    """Contract core 8: at the start an error is the step's, later everything stays as it is."""
    api.fail(error, path="/api/v1/namespaces")
    with pytest.raises(type(error)):
        await hand_over.look()
    api.heal()
    await hand_over.look()
    api.fail(error, path="/api/v1/namespaces")
    async with running(hand_over.run):
        await asyncio.sleep(600)
    assert controllers.log == ["start"]


async def test_owner(api: FakeApi, client: Client) -> None:
    """Contract core 8: a kind that is not served counts as no garden; a garden counts more than a shoot."""
    system(api)
    fault = NotFound("the server could not find the requested resource", status=404)
    api.fail(fault, path="/apis/operator.gardener.cloud")
    assert await owner(client) is None
    system(api, "shoot")
    assert await owner(client) == SHOOT
    api.heal()
    garden(api)
    assert await owner(client) == GARDEN
