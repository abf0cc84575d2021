"""Conditions and the life cycle of extension objects, on custom resources of a real kube-apiserver."""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from agents.core.clock import SystemClock
from agents.kube.client import Client
from agents.kube.errors import Conflict, NotFound, UnexpectedStatus
from agents.kube.models import SECRETS
from agents.kube.patch import merge, strategic
from agents.kube.write import Outcome, Target, add_finalizer, deploy, remove_finalizer
from gardenlet.apis.core import Condition, ConditionStatus, format_nano, format_time
from gardenlet.apis.extensions import INFRASTRUCTURES
from gardenlet.care import conditions
from gardenlet.operation import extension
from gardenlet.operation.errors import codes_of
from gardenlet.operation.extension import WaitTimes
from gardenlet.operation.restore import restore_object
from tests.integration.gardenlet.conftest import NewClient

pytestmark = pytest.mark.usefixtures("infrastructures")

SHORT = WaitTimes(interval=timedelta(seconds=0.1), severe=timedelta(seconds=0.5), timeout=timedelta(seconds=10))


async def report(client: Client, target: Target, **status: object) -> None:
    """Be the extension controller: take the operation away, and write a status."""
    await client.patch(
        INFRASTRUCTURES,
        target.name,
        merge({"metadata": {"annotations": {"gardener.cloud/operation": None}}}),
        namespace="default",
    )
    now = datetime.now(UTC) + timedelta(seconds=1)
    body = {"lastOperation": {"type": "Reconcile", "state": "Succeeded", "lastUpdateTime": format_time(now)}, **status}
    await client.patch(INFRASTRUCTURES, target.name, merge({"status": body}), namespace="default", subresource="status")


async def test_ten_writers_lose_no_condition(client: Client, new_client: NewClient, name: str) -> None:
    """Contract core 5.4 (ours): writers that change conditions of one custom resource at the same time lose nobody's."""
    target = Target(INFRASTRUCTURES, name, "default")
    await deploy(client, target, lambda document: document.update(spec={"type": "x"}))

    async def write(number: int) -> None:
        own = Condition(type=f"T{number}", status=ConditionStatus.TRUE, reason="R", message="M")

        def change(old: Sequence[Condition]) -> Sequence[Condition]:
            return conditions.merge(old, own)

        for _ in range(20):
            try:
                await conditions.write(writer, target, change)
            except Conflict:
                continue  # five times in a row: the workqueue would bring the key again
            else:
                return

    writer = new_client()
    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(write(number))
    found = conditions.of((await target.read(client)).content)
    assert sorted(item.type for item in found) == sorted(f"T{number}" for number in range(10))
    assert (await target.read(client)).content["spec"] == {"type": "x"}


async def test_custom_resources_know_no_strategic_merge_patch(client: Client, name: str) -> None:
    """Contract core 5.4: why conditions are not written by strategic merge patch: a CRD answers 415."""
    target = Target(INFRASTRUCTURES, name, "default")
    await deploy(client, target, lambda document: document.update(spec={"type": "x"}))
    with pytest.raises(UnexpectedStatus):
        await client.patch(
            INFRASTRUCTURES, name, strategic({"status": {"conditions": []}}), namespace="default", subresource="status"
        )


async def test_deploy_is_idempotent(client: Client, name: str) -> None:
    """Contract controllers 2.3: deployed a second time nothing is sent, so neither version nor generation moves."""
    target = Target(INFRASTRUCTURES, name, "default")

    def mutate(document: dict[str, object]) -> None:
        document["spec"] = {"type": "x", "providerConfig": {"a": None, "b": [1, {"c": 2}]}}

    first, outcome = await deploy(client, target, mutate)
    assert outcome is Outcome.CREATED
    second, outcome = await deploy(client, target, mutate)
    assert outcome is Outcome.UNCHANGED
    assert second.metadata.resource_version == first.metadata.resource_version
    assert await add_finalizer(client, target, second, "example.org/test")
    assert await remove_finalizer(client, target, await target.read(client), "example.org/test")
    assert "finalizers" not in (await target.read(client)).content["metadata"]


async def test_life_cycle(client: Client, name: str) -> None:
    """Contract controllers 2.5: deploy, wait, an error with codes, spec replaced, delete; with an extension that answers."""
    clock = SystemClock()
    target = Target(INFRASTRUCTURES, name, "default")
    written = await extension.deploy_object(
        client, target, {"type": "x", "region": "r"}, clock=clock, operation="reconcile"
    )
    assert written.metadata.generation == 1
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(extension.wait_until_ready(client, target, times=SHORT, written=written))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await report(client, target, observedGeneration=1, providerStatus={"vpc": "1"})
    assert waiting.result().content["status"]["providerStatus"] == {"vpc": "1"}
    written = await extension.deploy_object(client, target, {"type": "x"}, clock=clock, operation="reconcile")
    assert written.metadata.generation == 2
    assert written.content["spec"] == {"type": "x"}
    await report(client, target, observedGeneration=2, lastError={"description": "no", "codes": ["ERR_X"]})
    with pytest.raises(extension.WaitFailed) as caught:
        await extension.wait_until_ready(client, target, times=SHORT, written=written)
    assert codes_of(caught.value) == ("ERR_X",)
    await extension.delete_object(client, target, clock=clock)
    second = timedelta(seconds=1)
    await extension.wait_until_deleted(client, target, interval=second / 10, timeout=5 * second)
    with pytest.raises(NotFound):
        await target.read(client)


async def test_restore(client: Client, name: str) -> None:
    """Contract controllers 2.5.6: the state goes to the status subresource, referenced objects are created by their kind's name."""
    clock = SystemClock()
    target = Target(INFRASTRUCTURES, name, "default")
    reference = {"apiVersion": "v1", "kind": "Secret", "name": f"{name}-ref"}
    entry = {"kind": "Infrastructure", "name": name, "state": {"a": 1}, "resources": [{"resourceRef": reference}]}
    data = {"metadata": {"name": "x", "uid": "old", "creationTimestamp": "2020-01-01T00:00:00Z"}, "data": {"k": "dg=="}}
    state = {"extensions": [entry], "resources": [{**reference, "data": data}]}
    written = await extension.deploy_object(client, target, {"type": "x"}, clock=clock, operation="wait-for-state")
    restored = await restore_object(client, target, written, state, clock=clock)
    assert restored.metadata.annotations["gardener.cloud/operation"] == "restore"
    found = await client.get(INFRASTRUCTURES, name, namespace="default")
    assert found.status.state == {"a": 1}
    assert (await client.get(SECRETS, f"{name}-ref", namespace="default")).data == {"k": b"v"}
    assert json.dumps(found.content["status"]["resources"]) == json.dumps([{"resourceRef": reference}])
    assert restored.metadata.annotations["gardener.cloud/timestamp"] <= format_nano(clock.now())
