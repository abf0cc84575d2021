"""The writes that controllers have in common, on an API server in memory."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from agents.kube.client import Client
from agents.kube.discovery import find_resource
from agents.kube.errors import AlreadyExists, Conflict, InvalidResponse, NotFound
from agents.kube.models import NODES, SECRETS
from agents.kube.resource import whole
from agents.kube.write import (
    Outcome,
    Target,
    add_finalizer,
    change_until_done,
    create_or_patch,
    deploy,
    patch_changes,
    remove_finalizer,
)
from tests.support.fake_api import FakeApi

TARGET = Target(SECRETS, "a", "n")


@pytest.fixture
def api() -> FakeApi:
    """An empty API server in memory."""
    return FakeApi()


@pytest.fixture
def client(api: FakeApi) -> Client:
    """A client of that API server."""
    return Client(transport=api, rng=Random(1))


def put(api: FakeApi, **fields: Any) -> None:
    """Create or replace the target."""
    api.put(SECRETS, {"metadata": {"name": "a", "namespace": "n", **fields.pop("metadata", {})}, **fields})


def setting(**fields: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change that sets top-level fields."""
    return lambda document: document.update(fields)


@pytest.mark.parametrize("verb", [deploy, create_or_patch])
async def test_create(api: FakeApi, client: Client, verb: Any) -> None:
    """Contract controllers 2.3: what does not exist is created with its name, whichever verb."""
    written, outcome = await verb(client, TARGET, setting(type="x"))
    assert outcome is Outcome.CREATED
    assert (written.metadata.name, written.content["type"]) == ("a", "x")
    assert [call.method for call in api.calls] == (["GET", "POST"] if verb is deploy else ["POST"])


@pytest.mark.parametrize("verb", [deploy, create_or_patch])
async def test_patch_is_only_what_differs(api: FakeApi, client: Client, verb: Any) -> None:
    """Contract controllers 2.3: what exists is patched with the difference; fields that we do not know stay."""
    put(api, type="x", unknown={"kept": True})
    written, outcome = await verb(client, TARGET, setting(type="y"))
    assert outcome is Outcome.CHANGED
    [call] = api.requests("PATCH")
    assert call.content_type == "application/merge-patch+json"
    assert json.loads(call.body or b"") == {"type": "y"}
    assert written.content["unknown"] == {"kept": True}
    assert api.requests("PUT") == []


@pytest.mark.parametrize("verb", [deploy, create_or_patch])
@pytest.mark.parametrize("lock", [True, False])
async def test_no_difference_no_request(api: FakeApi, client: Client, verb: Any, lock: bool) -> None:
    """Contract controllers 2.3: an empty patch is not sent."""
    put(api, type="x")
    _, outcome = await verb(client, TARGET, setting(type="x", other=None), lock=lock)
    assert outcome is Outcome.UNCHANGED
    assert api.requests("PATCH") == []


async def test_optimistic_lock(api: FakeApi, client: Client) -> None:
    """Contract controllers 2.3: with a lock the patch carries the resource version, so a write in between is a conflict."""
    put(api, type="x")
    found = await TARGET.read(client)
    put(api, type="other")
    with pytest.raises(Conflict):
        await patch_changes(client, TARGET, found, setting(type="y"), lock=True)
    written, _ = await patch_changes(client, TARGET, found, setting(type="y"))
    assert written.content["type"] == "y"


async def test_somebody_creates_it_meanwhile(api: FakeApi, client: Client) -> None:
    """An object that appears between the read and the create is reported, for the next reconcile to see."""
    api.fail(NotFound("no", status=404), times=1, method="GET")
    put(api)
    with pytest.raises(AlreadyExists):
        await deploy(client, TARGET, setting(type="y"))


async def test_change_is_repeated_after_a_conflict(api: FakeApi, client: Client) -> None:
    """Contract core 5.4 (ours): a change is computed anew from a fresh read after each 409, at most five times."""
    put(api, items=["theirs"])
    seen: list[list[str]] = []

    def mutate(document: dict[str, Any]) -> None:
        seen.append(document["items"])
        if len(seen) < 3:
            put(api, items=[*document["items"], str(len(seen))])
        document["items"] = [*document["items"], "ours"]

    written, _ = await change_until_done(client, TARGET, mutate)
    assert written.content["items"] == ["theirs", "1", "2", "ours"]
    api.fail(Conflict("no", status=409), method="PATCH")
    with pytest.raises(Conflict):
        await change_until_done(client, TARGET, setting(type="z"))
    assert len(api.requests("PATCH")) == 3 + 5


async def test_finalizers(api: FakeApi, client: Client) -> None:
    """Contract controllers 2.3: finalizers are written by merge patch with the resource version; removal ignores NotFound."""
    put(api, metadata={"finalizers": ["other"]})
    item = await TARGET.read(client)
    assert await add_finalizer(client, TARGET, item, "gardener")
    with pytest.raises(Conflict):
        await add_finalizer(client, TARGET, item, "gardener")
    item = await TARGET.read(client)
    assert item.metadata.finalizers == ("other", "gardener")
    assert not await add_finalizer(client, TARGET, item, "gardener")
    assert await remove_finalizer(client, TARGET, item, "gardener")
    item = await TARGET.read(client)
    assert item.metadata.finalizers == ("other",)
    assert not await remove_finalizer(client, TARGET, item, "gardener")
    assert await remove_finalizer(client, TARGET, item, "other")
    assert "finalizers" not in (await TARGET.read(client)).content["metadata"]
    api.remove(SECRETS, "a", "n")
    assert not await remove_finalizer(client, TARGET, item, "other")


def test_whole_is_the_same_kind() -> None:
    """The kind read whole lives where the kind lives."""
    assert whole(NODES).path("x") == NODES.path("x")
    assert whole(document := whole(NODES)) is document


async def test_kind_by_name(api: FakeApi, client: Client) -> None:
    """A kind that is known by name only is looked up; subresources are not it."""
    listed = {
        "resources": [
            {"name": "widgets/status", "kind": "Widget", "namespaced": True},
            {"name": "widgets", "kind": "Widget", "namespaced": True},
        ]
    }
    api.serve("/apis/example.org/v1", json.dumps(listed).encode())
    api.serve("/api/v1", b'{"kind":"APIResourceList"}')
    found = await find_resource(client, "example.org/v1", "Widget")
    assert found.path("w", namespace="n") == "/apis/example.org/v1/namespaces/n/widgets/w"
    with pytest.raises(NotFound):
        await find_resource(client, "example.org/v1", "Gadget")
    with pytest.raises(InvalidResponse):
        await find_resource(client, "v1", "Secret")
