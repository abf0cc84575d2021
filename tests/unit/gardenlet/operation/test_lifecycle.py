"""Which Extensions there are, and when they are dealt with."""

import pytest

from gardenlet.operation import lifecycle
from gardenlet.operation.lifecycle import Act, ControllerResource, Phase, RequestedExtension

BEFORE, AFTER, WORKER = Phase.BEFORE_KUBE_API_SERVER, Phase.AFTER_KUBE_API_SERVER, Phase.AFTER_WORKER


def resource(type_: str, **fields: object) -> ControllerResource:
    """Return one Extension that is registered."""
    return ControllerResource.model_validate({"kind": "Extension", "type": type_, **fields})


@pytest.mark.parametrize(
    ("configured", "act", "phase"),
    [
        (None, Act.RECONCILE, AFTER),
        (None, Act.DELETE, BEFORE),
        (None, Act.MIGRATE, BEFORE),
        ({"delete": None}, Act.DELETE, BEFORE),
        ({"reconcile": "BeforeKubeAPIServer"}, Act.RECONCILE, BEFORE),
        ({"reconcile": "AfterWorker"}, Act.RECONCILE, WORKER),
        ({"delete": "AfterKubeAPIServer"}, Act.DELETE, AFTER),
        ({"migrate": "AfterKubeAPIServer"}, Act.MIGRATE, AFTER),
        ({"migrate": "AfterKubeAPIServer"}, Act.RECONCILE, AFTER),
    ],
)
def test_phase(configured: dict[str, str] | None, act: Act, phase: Phase) -> None:
    """Contract controllers 2.6: lifecycle with its defaults: reconcile after the API server, delete and migrate before it."""
    registered = [resource("a", lifecycle=configured), ControllerResource(kind="Worker", type="a")]
    assert lifecycle.phase_of(registered[0], act) == phase
    assert {place for place in Phase if lifecycle.in_phase(registered, act, place) == {"a"}} == {phase}


def test_wanted_extensions() -> None:
    """Contract controllers 2.6: automatic ones and those asked for, without disabled ones; workerless needs support."""
    registered = [
        resource("auto", autoEnable=["shoot"]),
        resource("auto-workerless", autoEnable=["shoot", "seed"], workerlessSupported=True),
        resource("off", autoEnable=["shoot"]),
        resource("manual"),
        ControllerResource(kind="Worker", type="w", auto_enable=("shoot",)),
    ]
    requested = [
        RequestedExtension(type="manual"),
        RequestedExtension(type="off", disabled=True),
        RequestedExtension(type="explicit", disabled=False),
    ]
    wanted = lifecycle.wanted_extensions(registered, requested, cluster_type="shoot")
    assert wanted == {"auto", "auto-workerless", "manual", "explicit"}
    workerless = lifecycle.wanted_extensions(registered, requested, cluster_type="shoot", workerless=True)
    assert workerless == {"auto-workerless", "manual", "explicit"}
    assert lifecycle.wanted_extensions(registered, [], cluster_type="seed") == {"auto-workerless"}
    assert lifecycle.stale_extensions(["auto", "old"], wanted) == {"old"}
