"""Giving an extension object the state that it had in another seed."""

import gzip
import json
from base64 import b64decode, b64encode
from typing import Any

import pytest

from agents.kube.client import Client
from agents.kube.errors import Unavailable
from agents.kube.models import SECRETS
from agents.kube.write import Target
from gardenlet.apis.extensions import CONTROL_PLANES, WORKERS
from gardenlet.operation import extension
from gardenlet.operation.restore import CannotRestore, restore_object
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi

TARGET = Target(CONTROL_PLANES, "shoot", "cp")
WORKER = Target(WORKERS, "shoot", "cp")
REFERENCE = {"apiVersion": "v1", "kind": "Secret", "name": "ref"}
STATE: dict[str, Any] = {
    "extensions": [
        {"kind": "ControlPlane", "name": "shoot", "purpose": "exposure", "state": {"wrong": True}},
        {"kind": "Worker", "name": "other", "state": {"wrong": True}},
        {
            "kind": "ControlPlane",
            "name": "shoot",
            "state": {"key": "value"},
            "resources": [{"name": "ref", "resourceRef": REFERENCE}, {"name": "x", "resourceRef": {"name": "unknown"}}],
        },
    ],
    "resources": [
        {
            **REFERENCE,
            "data": {
                "kind": "Secret",
                "metadata": {
                    "name": "ref",
                    "namespace": "old",
                    "uid": "u",
                    "resourceVersion": "9",
                    "labels": {"a": "b"},
                },
                "data": {"k": "dg=="},
                "type": "x",
            },
        }
    ],
}


@pytest.fixture
def api(api: FakeApi) -> FakeApi:
    """An API server that knows Secrets by name."""
    listed = {"resources": [{"name": "secrets", "kind": "Secret", "namespaced": True}]}
    api.serve("/api/v1", json.dumps(listed).encode())
    return api


async def deploy_and_restore(client: Client, target: Target, state: dict[str, Any], clock: FakeClock) -> None:
    """Deploy an object that waits for its state, and restore it."""
    written = await extension.deploy_object(client, target, {"type": "aws"}, clock=clock, operation="wait-for-state")
    await restore_object(client, target, written, state, clock=clock)


def stored(api: FakeApi, target: Target) -> dict[str, Any]:
    """Return an object."""
    found = api.read(target.resource, target.name, target.namespace or "")
    assert found is not None
    return found


async def test_restore(api: FakeApi, client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.5.6: state and resources of the entry by kind, name and purpose; its objects; then `restore`."""
    await deploy_and_restore(client, TARGET, STATE, clock)
    found = stored(api, TARGET)
    assert found["status"] == {"state": {"key": "value"}, "resources": STATE["extensions"][2]["resources"]}
    assert found["metadata"]["annotations"]["gardener.cloud/operation"] == "restore"
    secret = api.read(SECRETS, "ref", "cp")
    assert secret is not None
    assert (secret["data"], secret["metadata"]["labels"]) == ({"k": "dg=="}, {"a": "b"})
    assert secret["metadata"]["namespace"] == "cp"


async def test_object_with_a_state_is_only_annotated(api: FakeApi, client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.5.6: if `status.state` is there already, nothing is restored; `restore` is asked for."""
    api.put(CONTROL_PLANES, {"metadata": {"name": "shoot", "namespace": "cp"}, "status": {"state": {"key": "newer"}}})
    await deploy_and_restore(client, TARGET, STATE, clock)
    found = stored(api, TARGET)
    assert found["status"] == {"state": {"key": "newer"}}
    assert found["metadata"]["annotations"]["gardener.cloud/operation"] == "restore"
    assert api.read(SECRETS, "ref", "cp") is None


async def test_object_without_an_entry(api: FakeApi, client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.5.6: what the ShootState knows nothing about is restored without a state."""
    await deploy_and_restore(client, TARGET, {}, clock)
    assert "status" not in stored(api, TARGET)


async def test_killed_in_between_the_next_run_does_the_rest(api: FakeApi, client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.5.6 (ours): the state is written after the objects it refers to, so nothing is left out."""
    path = "/apis/extensions.gardener.cloud/v1alpha1/namespaces/cp/controlplanes/shoot/status"
    api.fail(Unavailable("gone"), method="PATCH", path=path)
    with pytest.raises(Unavailable):
        await deploy_and_restore(client, TARGET, STATE, clock)
    assert stored(api, TARGET)["metadata"]["annotations"]["gardener.cloud/operation"] == "wait-for-state"
    api.remove(SECRETS, "ref", "cp")
    api.heal()
    await deploy_and_restore(client, TARGET, STATE, clock)
    assert api.read(SECRETS, "ref", "cp") is not None
    assert stored(api, TARGET)["status"]["state"] == {"key": "value"}


def machines(document: object) -> dict[str, Any]:
    """Return a ShootState with machines."""
    packed = b64encode(gzip.compress(json.dumps(document).encode())).decode()
    return {"gardener": [{"name": "machine-state", "type": "machine-state", "data": {"state": packed}}]}


MACHINES = {
    "machineDeployments": {
        "pool": {
            "replicas": 2,
            "machines": [{"metadata": {"name": "m", "namespace": "old"}, "spec": {"x": 1}}],
            "machineSets": [{"metadata": {"name": "s", "namespace": "old"}}],
        }
    }
}


async def test_machines_of_a_worker(api: FakeApi, client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.5.6: a Worker gets `machine-state`, gzip JSON, with the namespaces rewritten to its own."""
    await deploy_and_restore(client, WORKER, machines(MACHINES), clock)
    text = gzip.decompress(b64decode(stored(api, WORKER)["status"]["state"]["state"]))
    pool = json.loads(text)["machineDeployments"]["pool"]
    assert pool["replicas"] == 2
    assert pool["machines"] == [{"metadata": {"name": "m", "namespace": "cp"}, "spec": {"x": 1}}]
    assert pool["machineSets"][0]["metadata"]["namespace"] == "cp"


async def test_other_kinds_get_no_machines(api: FakeApi, client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.5.6: `machine-state` is a Worker's alone."""
    await deploy_and_restore(client, TARGET, machines(MACHINES), clock)
    assert "status" not in stored(api, TARGET)


async def test_state_and_machines_exclude_each_other(client: Client, clock: FakeClock) -> None:
    """Contract controllers 2.5.6: a Worker whose extension wrote a state, too, cannot be restored."""
    state = machines(MACHINES) | {"extensions": [{"kind": "Worker", "name": "shoot", "state": {"a": 1}}]}
    with pytest.raises(CannotRestore):
        await deploy_and_restore(client, WORKER, state, clock)


@pytest.mark.parametrize("packed", ["!", "aGVsbG8=", b64encode(gzip.compress(b"[1]", mtime=0)).decode()])
async def test_machines_that_cannot_be_decoded(client: Client, clock: FakeClock, packed: str) -> None:
    """Contract controllers 2.5.6: torn data is reported, not restored."""
    state = {"gardener": [{"name": "machine-state", "type": "machine-state", "data": {"state": packed}}]}
    with pytest.raises(CannotRestore):
        await deploy_and_restore(client, WORKER, state, clock)
