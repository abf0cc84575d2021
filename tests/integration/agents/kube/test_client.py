"""The client against a real kube-apiserver."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agents.kube.client import Client, Selector
from agents.kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Unauthorized,
    Unavailable,
)
from agents.kube.kubeconfig import Credentials
from agents.kube.models import LEASES, NODES, SECRETS, format_micro_time
from agents.kube.patch import apply, merge, strategic
from tests.integration.agents.conftest import NewClient
from tests.lab.controlplane import ControlPlane
from tests.lab.pki import Authority


async def test_create_get_list_delete(client: Client, name: str) -> None:
    """What is created can be read with its bytes, is listed with a version, and is gone after a delete."""
    document = {"metadata": {"name": name, "labels": {"test": name}}, "data": {"token": "aGFsbG8="}}
    created = await client.create(SECRETS, document, namespace="kube-system")
    read = await client.get(SECRETS, name, namespace="kube-system")
    assert read == created
    assert (read.data, read.metadata.namespace, read.metadata.labels) == (
        {"token": b"hallo"},
        "kube-system",
        {"test": name},
    )
    for selector in (Selector(label=f"test={name}"), Selector(field=f"metadata.name={name}")):
        listed = await client.list(SECRETS, namespace="kube-system", selector=selector)
        assert listed.items == (read,)
        assert int(listed.resource_version) >= int(read.metadata.resource_version)
    assert read in (await client.list(SECRETS)).items
    with pytest.raises(Conflict):
        await client.delete(SECRETS, name, namespace="kube-system", uid="another")
    await client.delete(SECRETS, name, namespace="kube-system", uid=read.metadata.uid)
    with pytest.raises(NotFound):
        await client.get(SECRETS, name, namespace="kube-system")


async def test_selector_with_special_characters(client: Client, name: str) -> None:
    """A selector reaches the server as it was written, with brackets, commas and an encoded plus sign."""
    await client.create(SECRETS, {"metadata": {"name": name, "labels": {"a.b/c": name}}}, namespace="default")
    found = await client.list(SECRETS, namespace="default", selector=Selector(label=f"a.b/c in ({name},x),a.b/c!=y"))
    assert [item.metadata.name for item in found.items] == [name]
    with pytest.raises(BadRequest):
        await client.list(SECRETS, selector=Selector(label="a+b%3D&limit=1"))


async def test_merge_patch_removes_with_null(client: Client, name: str) -> None:
    """Contract 6.9: a merge patch must change only the keys that it names; null removes one."""
    await client.create(NODES, {"metadata": {"name": name, "annotations": {"a": "1", "b": "2"}}})
    patched = await client.patch(NODES, name, merge({"metadata": {"annotations": {"a": None, "c": "3"}}}))
    assert patched.metadata.annotations == {"b": "2", "c": "3"}


async def test_strategic_patch_keeps_other_conditions(client: Client, name: str) -> None:
    """Contract 9 W9: one condition must be patched without touching the others (merge key `type`)."""
    await client.create(NODES, {"metadata": {"name": name}})
    for condition in ("Ready", "SystemdUnitsReady"):
        body = {"status": {"conditions": [{"type": condition, "status": "True", "reason": "Test"}]}}
        patched = await client.patch(NODES, name, strategic(body), subresource="status")
    assert {condition.type for condition in patched.status.conditions} == {"Ready", "SystemdUnitsReady"}


async def test_apply_creates_and_changes(client: Client, name: str) -> None:
    """A server-side apply creates an object and later changes what it owns."""
    document = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {"a": "MQ=="}}
    await client.patch(SECRETS, name, apply(document, field_manager="test"), namespace="default")
    document["data"] = {"b": "Mg=="}
    applied = await client.patch(SECRETS, name, apply(document, field_manager="test", force=True), namespace="default")
    assert applied.data == {"b": b"2"}


async def test_lease_is_replaced_whole(client: Client, name: str) -> None:
    """Contract 7.1: the Lease must be updated by PUT, with a renewTime in microseconds; an old version is a conflict."""
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    created = await client.create(LEASES, {"metadata": {"name": name}, "spec": {}}, namespace="kube-system")
    document = {
        "metadata": {"name": name, "resourceVersion": created.metadata.resource_version},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": format_micro_time(moment)},
    }
    replaced = await client.replace(LEASES, name, document, namespace="kube-system")
    assert (replaced.spec.holder_identity, replaced.spec.lease_duration_seconds) == (name, 40)
    assert replaced.spec.renew_time == moment
    with pytest.raises(Conflict):
        await client.replace(LEASES, name, document, namespace="kube-system")


async def test_get_raw(client: Client) -> None:
    """A path that holds no object gives its bytes."""
    assert await client.get_raw("/readyz") == b"ok"


async def test_name_that_is_taken(client: Client, name: str) -> None:
    """Creating twice tells that the name is taken, and not any conflict."""
    await client.create(SECRETS, {"metadata": {"name": name}}, namespace="default")
    with pytest.raises(AlreadyExists) as caught:
        await client.create(SECRETS, {"metadata": {"name": name}}, namespace="default")
    assert (caught.value.status, caught.value.reason) == (409, "AlreadyExists")


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ({"metadata": {"name": "Not_A_Name"}}, Invalid),
        ({"metadata": {"name": "bad"}, "data": {"a": "not base64"}}, BadRequest),
    ],
)
async def test_bad_objects_are_terminal(client: Client, document: dict[str, object], error: type[ApiError]) -> None:
    """An object that can never be stored is a terminal error."""
    with pytest.raises(error):
        await client.create(SECRETS, document, namespace="default")


async def test_unknown_token_is_unauthorized(new_client: NewClient) -> None:
    """Credentials that the server does not know are told as such."""
    client = new_client(credentials=Credentials(token="wrong"))
    with pytest.raises(Unauthorized) as caught:
        await client.get(NODES, "any")
    assert "wrong" not in str(caught.value)


async def test_stranger_is_forbidden(new_client: NewClient, integration_control_plane: ControlPlane) -> None:
    """A known user without rights gets an error that names what was asked, and no more."""
    certificate, key = integration_control_plane.issue_client_certificate("stranger", ["strangers"])
    client = new_client(credentials=Credentials(client_certificate=certificate, client_key=key))
    with pytest.raises(Forbidden) as caught:
        await client.get(NODES, "any")
    assert caught.value.fields["path"] == "/api/v1/nodes/any"
    assert caught.value.reason == "Forbidden"


async def test_ca_file_and_server_without_scheme(
    new_client: NewClient, integration_control_plane: ControlPlane, tmp_path: Path
) -> None:
    """A CA file works like inline data, and `https://` is added."""
    ca_file = tmp_path / "ca.crt"
    ca_file.write_bytes(integration_control_plane.ca_pem)
    server = integration_control_plane.server.removeprefix("https://")
    client = new_client(server=server, ca_file=ca_file, ca_data=b"")
    assert await client.get_raw("/readyz") == b"ok"


async def test_server_of_another_ca_is_not_trusted(new_client: NewClient) -> None:
    """A server whose certificate is not of our CA is no connection at all."""
    with pytest.raises(Unavailable) as caught:
        await new_client(ca_data=Authority.create("other").certificate_pem).get_raw("/readyz")
    assert "certificate verify failed" in str(caught.value.fields["cause"])


async def test_missing_ca_file_can_be_waited_for(new_client: NewClient, tmp_path: Path) -> None:
    """A CA file that is not there (yet) is retriable, and works as soon as it is there."""
    client = new_client(ca_file=tmp_path / "ca.crt")
    with pytest.raises(Unavailable) as caught:
        await client.get_raw("/readyz")
    assert "CA file is missing" in str(caught.value.fields["cause"])


async def test_expired_token_file(client: Client, new_client: NewClient, name: str, tmp_path: Path) -> None:
    """Contract 4.2: a token file whose token has expired gives 401; once the file has a new one the next request works."""
    token_id = name[-6:]
    expiring = {"token-id": token_id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"}
    secret = {"metadata": {"name": f"bootstrap-token-{token_id}"}, "type": "bootstrap.kubernetes.io/token"}
    data = {**expiring, "expiration": "2026-01-01T00:00:00Z"}
    await client.create(SECRETS, {**secret, "stringData": data}, namespace="kube-system")
    path = tmp_path / "token"
    path.write_text(f"{token_id}.0123456789abcdef\n")
    bearer = new_client(credentials=Credentials(token_file=path))
    with pytest.raises(Unauthorized):
        await bearer.get_raw("/version")

    fresh = f"{token_id[::-1]}x"[-6:]
    secret["metadata"] = {"name": f"bootstrap-token-{fresh}"}
    await client.create(SECRETS, {**secret, "stringData": {**expiring, "token-id": fresh}}, namespace="kube-system")
    path.write_text(f"{fresh}.0123456789abcdef\n")
    await eventually_authorized(bearer)


async def eventually_authorized(client: Client) -> None:
    """Ask until the API server knows the new token; it reads it from a cache of its own."""
    async with asyncio.timeout(10):
        while True:
            try:
                assert b"gitVersion" in await client.get_raw("/version")
            except Unauthorized:
                await asyncio.sleep(0.1)
            else:
                return
