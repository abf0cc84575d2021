"""The API server in memory behaves as the real one does, as far as tests rely on it: one scenario, played on both."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from agents.kube.client import Client, DeleteOptions, Selector
from agents.kube.errors import ApiError
from agents.kube.models import LEASES, NODES, SECRETS, Secret
from agents.kube.patch import merge, strategic
from tests.support.fake_api import FakeApi


async def attempt(call: Callable[[], Awaitable[object]]) -> str:
    """Return the class of the error that a call gets, or that it gets none."""
    try:
        await call()
    except ApiError as error:
        return f"{type(error).__name__} {error.status} {error.reason}"
    return "success"


async def play(client: Client, name: str) -> list[object]:
    """Play the scenario; returns what a client can see of it."""
    space = "default"
    document = {"metadata": {"name": name, "labels": {"color": "red"}}, "data": {"a": "MQ=="}}
    seen: list[object] = [await attempt(lambda: client.get(SECRETS, name, namespace=space))]
    created = await client.create(SECRETS, document, namespace=space)
    seen += [created.data, created.metadata.namespace, bool(created.metadata.uid)]
    seen.append(await attempt(lambda: client.create(SECRETS, document, namespace=space)))
    selector = Selector(label="color=red", field=f"metadata.name={name}")
    listed = await client.list(SECRETS, namespace=space, selector=selector)
    seen += [listed.items == (created,), (await client.list(SECRETS, namespace="other", selector=selector)).items]
    events: list[str] = []

    async def follow() -> None:
        async with client.watch(
            SECRETS, namespace=space, selector=selector, resource_version=listed.resource_version
        ) as watch:
            async for event in watch:
                if event.object is not None:
                    events.append(f"{event.type} {dict(event.object.data)}")
                if len(events) == 3:
                    return

    async with asyncio.TaskGroup() as group:
        group.create_task(follow())
        seen.append(await changes(client, name, space, created))
    seen.append(events)
    seen.append(await attempt(lambda: client.delete(SECRETS, name, namespace=space)))
    seen.append(await pages(client, name, space))
    seen.append(await nodes_and_leases(client, name))
    return seen


async def delete_if(client: Client, name: str, space: str, options: DeleteOptions) -> str:
    """Try to delete a Secret."""
    return await attempt(lambda: client.delete(SECRETS, name, namespace=space, options=options))


async def pages(client: Client, name: str, space: str) -> list[object]:
    """Read objects page by page, and delete only what is still as it was read."""
    for number in range(5):
        metadata = {"name": f"{name}-{number}", "labels": {"paged": name}}
        await client.create(SECRETS, {"metadata": metadata}, namespace=space)
    selector = Selector(label=f"paged={name}")
    read = [page async for page in client.pages(SECRETS, namespace=space, selector=selector, size=2)]
    seen: list[object] = [[item.metadata.name.removeprefix(name) for item in page.items] for page in read]
    seen.append([bool(page.more) for page in read])
    first = read[0].items[0].metadata
    await client.patch(SECRETS, first.name, merge({"data": {"a": "MQ=="}}), namespace=space)
    for version in (first.resource_version, None):
        options = DeleteOptions(uid=first.uid, resource_version=version, propagation="Background", grace_seconds=0)
        seen.append(await delete_if(client, first.name, space, options))
    return seen


async def changes(client: Client, name: str, space: str, created: Secret) -> list[object]:
    """Change and delete the Secret."""
    seen: list[object] = []
    patched = await client.patch(SECRETS, name, merge({"data": {"a": None, "b": "Mg=="}}), namespace=space)
    seen += [patched.data, int(patched.metadata.resource_version) > int(created.metadata.resource_version)]
    relabelled = await client.patch(SECRETS, name, merge({"data": {"c": "Mw=="}}), namespace=space)
    seen += [relabelled.data, relabelled.metadata.uid == created.metadata.uid]
    seen.append(await attempt(lambda: client.delete(SECRETS, name, namespace=space, uid="another")))
    await client.delete(SECRETS, name, namespace=space, uid=created.metadata.uid)
    return seen


async def nodes_and_leases(client: Client, name: str) -> list[object]:
    """Patch conditions of a Node, replace a Lease."""
    seen: list[object] = []
    await client.create(NODES, {"metadata": {"name": name}})
    for condition, value in (("A", "True"), ("B", "True"), ("A", "False")):
        body = {"status": {"conditions": [{"type": condition, "status": value}]}}
        node = await client.patch(NODES, name, strategic(body), subresource="status")
    seen.append(sorted((condition.type, condition.status) for condition in node.status.conditions))
    seen.append(await addresses(client, name))
    lease = await client.create(
        LEASES, {"metadata": {"name": name}, "spec": {"holderIdentity": "x"}}, namespace="default"
    )
    document = {
        "metadata": {"name": name, "resourceVersion": lease.metadata.resource_version},
        "spec": {"leaseDurationSeconds": 40},
    }
    replaced = await client.replace(LEASES, name, document, namespace="default")
    seen += [replaced.spec.holder_identity, replaced.spec.lease_duration_seconds]
    seen.append(await attempt(lambda: client.replace(LEASES, name, document, namespace="default")))
    seen.append(await attempt(lambda: client.patch(NODES, f"{name}-x", merge({}))))
    return seen


async def addresses(client: Client, name: str) -> list[object]:
    """Replace the addresses of a Node that is still what was seen, then of one that is not."""
    seen: list[object] = []
    both = [{"type": "Hostname", "address": name}, {"type": "ExternalIP", "address": "192.0.2.1"}]
    node = await client.patch(NODES, name, strategic({"status": {"addresses": both}}), subresource="status")
    metadata = {"resourceVersion": node.metadata.resource_version}
    one = [{"type": "InternalIP", "address": "10.0.0.1"}, {"$patch": "replace"}]
    patch = strategic({"metadata": metadata, "status": {"addresses": one}})
    node = await client.patch(NODES, name, patch, subresource="status")
    seen.append([(address.type, address.address) for address in node.status.addresses])
    seen.append(sorted(condition.type for condition in node.status.conditions))
    seen.append(await attempt(lambda: client.patch(NODES, name, patch, subresource="status")))
    return seen


@pytest.mark.parametrize("which", ["fake", "real"])
async def test_scenario(client: Client, name: str, which: str) -> None:
    """Both servers show the same to a client, step by step."""
    player = client if which == "real" else Client(transport=FakeApi(), rng=Random(1))
    assert await play(player, name) == [
        "NotFound 404 NotFound",
        {"a": b"1"},
        "default",
        True,
        "AlreadyExists 409 AlreadyExists",
        True,
        (),
        [{"b": b"2"}, True, {"b": b"2", "c": b"3"}, True, "Conflict 409 Conflict"],
        ["MODIFIED {'b': b'2'}", "MODIFIED {'b': b'2', 'c': b'3'}", "DELETED {'b': b'2', 'c': b'3'}"],
        "NotFound 404 NotFound",
        [["-0", "-1"], ["-2", "-3"], ["-4"], [True, True, False], "Conflict 409 Conflict", "success"],
        [
            [("A", "False"), ("B", "True")],
            [[("InternalIP", "10.0.0.1")], ["A", "B"], "Conflict 409 Conflict"],
            None,
            40,
            "Conflict 409 Conflict",
            "NotFound 404 NotFound",
        ],
    ]
