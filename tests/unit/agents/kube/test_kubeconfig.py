"""Kubeconfigs: what is accepted, what is refused, what is written."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
import structlog

from agents.kube import kubeconfig
from agents.kube.errors import Unauthorized
from agents.kube.kubeconfig import ClusterAccess, Credentials, InvalidKubeconfig, TokenFile
from tests.support.clock import FakeClock

PEM = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
KEY = b"-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"


def b64(content: bytes) -> str:
    """Return content as it stands in a kubeconfig."""
    return base64.b64encode(content).decode()


def document(
    *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, current: object = "c", **top: Any
) -> bytes:
    """Return a kubeconfig."""
    return json.dumps(
        {
            "current-context": current,
            "contexts": [{"name": "other", "context": {}}, {"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": "https://api:6443", **(cluster or {})}}],
            "users": [{"name": "u", "user": user or {}}],
            **top,
        }
    ).encode()


def test_inline_credentials() -> None:
    """Contract 4.2: inline certificate and key must be accepted, with inline CA data."""
    user = {"client-certificate-data": b64(PEM), "client-key-data": b64(KEY)}
    access = kubeconfig.parse(document(cluster={"certificate-authority-data": b64(PEM)}, user=user))
    assert access == ClusterAccess(
        server="https://api:6443", ca_data=PEM, credentials=Credentials(client_certificate=PEM, client_key=KEY)
    )
    assert access.url == "https://api:6443"


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ({"token": "t"}, Credentials(token="t")),
        ({"username": "u", "password": "p"}, Credentials(username="u", password="p")),
        ({}, Credentials()),
    ],
)
def test_token_and_basic_auth(user: dict[str, str], expected: Credentials) -> None:
    """Contract 4.2: token and basic auth must be accepted."""
    assert kubeconfig.parse(document(user=user)).credentials == expected


def test_ca_file_is_fine() -> None:
    """Contract 4.2: a CA file must be accepted; it wins over data, and may be relative to the kubeconfig's folder."""
    cluster = {"certificate-authority": "ca.crt", "certificate-authority-data": b64(PEM)}
    access = kubeconfig.parse(document(cluster=cluster), directory=Path("/folder"))
    assert (access.ca_file, access.ca_data) == (Path("/folder/ca.crt"), b"")
    absolute = kubeconfig.parse(document(cluster={"certificate-authority": "/etc/ca.crt"}))
    assert absolute.ca_file == Path("/etc/ca.crt")
    with pytest.raises(InvalidKubeconfig):
        kubeconfig.parse(document(cluster=cluster))


@pytest.mark.parametrize(
    "user",
    [
        {"client-certificate": "/c"},
        {"client-key": "/k"},
        {"tokenFile": "/t"},
        {"exec": {"command": "/bin/true"}},
        {"auth-provider": {"name": "gcp"}},
        {"as": "admin"},
    ],
)
def test_refused_user_fields(user: dict[str, Any]) -> None:
    """Contract 4.2: file references for user credentials, exec and auth providers must be refused."""
    with pytest.raises(InvalidKubeconfig) as caught:
        kubeconfig.parse(document(user=user))
    assert caught.value.fields == {"keys": list(user)}


def test_token_file_on_request() -> None:
    """A token file is accepted where the caller allows it, and wins over an inline token."""
    user = {"tokenFile": "token", "token": "inline"}
    access = kubeconfig.parse(document(user=user), directory=Path("/folder"), allow_token_file=True)
    assert access.credentials == Credentials(token_file=Path("/folder/token"))


def test_other_cluster_fields() -> None:
    """Proxy, server name and the insecure switch are read."""
    cluster = {"proxy-url": "http://p", "tls-server-name": "n", "insecure-skip-tls-verify": True}
    access = kubeconfig.parse(document(cluster=cluster))
    assert (access.proxy, access.tls_server_name, access.insecure) == ("http://p", "n", True)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"text",
        b"a: [",
        b"\x00\xff",
        document()[:-40],
        document(current=""),
        document(current="missing"),
        document(current=5),
        document(clusters=None),
        document(users=[]),
        document(users=["u"]),
        document(contexts=[{"name": "c", "context": None}]),
        document(cluster={"server": ""}),
        document(cluster={"certificate-authority-data": "%%%"}),
        document(cluster={"certificate-authority-data": b64(b"no PEM")}),
        document(user={"client-certificate-data": b64(PEM)}),
        document(user={"client-key-data": b64(KEY)}),
        document(user={"token": ["t"]}),
    ],
)
def test_unusable_kubeconfigs(content: bytes) -> None:
    """Contract 4.4: what is empty, torn or incomplete must be recognised; the error does not quote it."""
    with pytest.raises(InvalidKubeconfig) as caught:
        kubeconfig.parse(content)
    assert "AAAA" not in str(caught.value)


def test_rendered_kubeconfig() -> None:
    """Contract 4.4: one cluster, user and context named `node-agent`, `https://` added, the CA as the file, inline user."""
    access = ClusterAccess(
        server="api:6443",
        ca_file=Path("/ca.crt"),
        ca_data=PEM,
        credentials=Credentials(client_certificate=PEM, client_key=KEY),
    )
    assert json.loads(kubeconfig.render(access)) == {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "node-agent",
        "clusters": [
            {"name": "node-agent", "cluster": {"server": "https://api:6443", "certificate-authority": "/ca.crt"}}
        ],
        "users": [{"name": "node-agent", "user": {"client-certificate-data": b64(PEM), "client-key-data": b64(KEY)}}],
        "contexts": [{"name": "node-agent", "context": {"cluster": "node-agent", "user": "node-agent"}}],
    }


def test_rendered_ca_data() -> None:
    """Contract 4.4: without a CA file the inline data must be written, never both."""
    rendered = json.loads(kubeconfig.render(ClusterAccess(server="api", ca_data=PEM)))
    assert rendered["clusters"][0]["cluster"] == {"server": "https://api", "certificate-authority-data": b64(PEM)}


def test_kubelet_bootstrap_kubeconfig() -> None:
    """Contract 7.10: all names must be `kubelet-bootstrap`, with a token and the CA file."""
    access = ClusterAccess(server="api", ca_file=Path("/ca"), credentials=Credentials(token="t"))
    rendered = json.loads(kubeconfig.render(access, name="kubelet-bootstrap"))
    assert rendered["users"] == [{"name": "kubelet-bootstrap", "user": {"token": "t"}}]
    assert rendered["current-context"] == "kubelet-bootstrap"


@pytest.mark.parametrize(
    "access",
    [
        ClusterAccess(
            server="http://a",
            ca_data=PEM,
            proxy="http://p",
            tls_server_name="n",
            insecure=True,
            credentials=Credentials(client_certificate=PEM, client_key=KEY, username="u", password="p"),
        ),
        ClusterAccess(server="https://a", ca_file=Path("/ca"), credentials=Credentials(token_file=Path("/t"))),
    ],
)
def test_round_trip(access: ClusterAccess) -> None:
    """What is written can be read back and is the same."""
    assert kubeconfig.parse(kubeconfig.render(access), allow_token_file=True) == access


def test_secrets_do_not_show() -> None:
    """The text of an access shows no key, token or password."""
    credentials = Credentials(client_key=KEY, token="hidden", password="hidden")
    text = repr(ClusterAccess(server="a", credentials=credentials))
    assert "hidden" not in text
    assert "PRIVATE" not in text


async def test_load(tmp_path: Path) -> None:
    """A file is read with its folder as the base; a missing one is None."""
    path = tmp_path / "kubeconfig"
    assert await kubeconfig.load(path) is None
    path.write_bytes(document(cluster={"certificate-authority": "ca.crt"}))
    access = await kubeconfig.load(path)
    assert access is not None
    assert access.ca_file == tmp_path / "ca.crt"


async def test_token_is_read_again_after_a_minute(tmp_path: Path, clock: FakeClock) -> None:
    """A token that somebody replaced is noticed after a minute at the latest, without its line feed."""
    path = tmp_path / "token"
    path.write_text("one\n")
    token = TokenFile(path, clock=clock)
    assert await token.get() == "one"
    path.write_text("two\n")
    await asyncio.sleep(60)
    assert await token.get() == "one"
    await asyncio.sleep(1)
    assert await token.get() == "two"


async def test_refused_token_is_read_again_at_once(tmp_path: Path, clock: FakeClock) -> None:
    """After the API server refused the token the file is read again."""
    path = tmp_path / "token"
    path.write_text("one")
    token = TokenFile(path, clock=clock)
    await token.get()
    path.write_text("two")
    token.expire()
    assert await token.get() == "two"


async def test_lost_token_file_keeps_the_last_token(tmp_path: Path, clock: FakeClock) -> None:
    """While the file is missing, empty or no file, the token that was read last is used on."""
    path = tmp_path / "token"
    path.write_text("one")
    token = TokenFile(path, clock=clock)
    await token.get()
    path.write_text("")
    token.expire()
    assert await token.get() == "one"
    path.unlink()
    path.mkdir()
    token.expire()
    with structlog.testing.capture_logs() as logs:
        assert await token.get() == "one"
    assert "one" not in str(logs)


@pytest.mark.parametrize("content", [None, "", " \n"])
async def test_no_token_at_all(tmp_path: Path, clock: FakeClock, content: str | None) -> None:
    """Without any token the error is retriable, and the file is tried again with the next request."""
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    token = TokenFile(path, clock=clock)
    with pytest.raises(Unauthorized):
        await token.get()
    path.write_text("one")
    assert await token.get() == "one"
