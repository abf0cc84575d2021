"""The legacy proxy port goes only when no shoot of the seed needs it."""

from random import Random
from typing import Any

import pytest

from agents.kube.client import Client
from gardenlet.apis.shoot import SHOOTS
from gardenlet.bootstrap.http_proxy_port import LegacyPortInUse, check_unified_port
from tests.support.fake_api import FakeApi

UNIFIED = {"type": "UsesUnifiedHTTPProxyPort", "status": "True"}
DONE = {"type": "Reconcile", "state": "Succeeded"}


def add_shoot(garden: FakeApi, name: str, *, constraint: dict[str, str] | None = None, **changes: Any) -> None:
    """Create a shoot with workers on our seed, as the garden labels it."""
    seed = changes.get("seed", "s")
    metadata = {"name": name, "namespace": "garden-p", "labels": {"name.seed.gardener.cloud/s": "true"}}
    spec = {"seedName": "s", "provider": {"workers": changes.get("workers", [{"name": "w"}])}}
    status = {"seedName": seed, "lastOperation": changes.get("operation", DONE)}
    constraints = [] if constraint is None else [constraint]
    garden.put(SHOOTS, {"metadata": metadata, "spec": spec, "status": {**status, "constraints": constraints}})


async def check(garden: FakeApi) -> None:
    """Check as gardenlet of the seed `s`."""
    await check_unified_port(Client(transport=garden, rng=Random(1)), "s")


async def test_shoots_that_do_not_count() -> None:
    """Contract core 1.2: another seed's, without workers, not begun, in creation or deletion; and one that is done."""
    garden = FakeApi()
    add_shoot(garden, "unified", constraint=UNIFIED)
    add_shoot(garden, "leaving", seed="other")
    add_shoot(garden, "workerless", workers=[])
    add_shoot(garden, "new", operation=None)
    add_shoot(garden, "created", operation={"type": "Create", "state": "Error"})
    add_shoot(garden, "deleted", operation={"type": "Delete", "state": "Processing"})
    await check(garden)


@pytest.mark.parametrize(
    ("constraint", "operation"),
    [
        (None, DONE),
        ({**UNIFIED, "status": "False"}, DONE),
        ({**UNIFIED, "status": "Progressing"}, DONE),
        ({"type": "Other", "status": "True"}, DONE),
        (None, {"type": "Reconcile", "state": "Error"}),
        (None, {"type": "Create", "state": "Succeeded"}),
    ],
)
async def test_a_shoot_that_needs_the_port(constraint: dict[str, str] | None, operation: dict[str, str]) -> None:
    """Contract core 1.2: the start is refused, and the shoot is named with what to do."""
    garden = FakeApi()
    add_shoot(garden, "fine", constraint=UNIFIED)
    add_shoot(garden, "legacy", constraint=constraint, operation=operation)
    with pytest.raises(LegacyPortInUse, match=r"RemoveHTTPProxyLegacyPort off.*shoots=garden-p/legacy, number=1"):
        await check(garden)


async def test_many_shoots_are_counted() -> None:
    """Contract core 1.2: ten are named, all are counted."""
    garden = FakeApi()
    for number in range(12):
        add_shoot(garden, f"legacy-{number:02}")
    with pytest.raises(LegacyPortInUse) as raised:
        await check(garden)
    assert raised.value.fields["number"] == 12
    assert str(raised.value.fields["shoots"]).split(", ")[-1] == "garden-p/legacy-09"
