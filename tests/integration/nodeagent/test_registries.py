"""Probes of registries, with real TLS on this host."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from nodeagent.controllers.operatingsystemconfig.containerd import ContainerdFiles, RegistryNotReady
from nodeagent.host.originals import Originals
from osc.types import Registry, RegistryHost
from tests.lab.pki import Authority, write_secret
from tests.support.osc_agent import FakeContainerd

UPSTREAM = "registry.example"
CERTIFICATES = "etc/containerd/certs.d/registry.example"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request."""
    await reader.readline()
    writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()
    writer.close()


def server_context(folder: Path, name: str) -> ssl.SSLContext:
    """Return what a server of a CA of its own needs; the CA is beside the registry's `hosts.toml`, under that name."""
    authority = Authority.create(name)
    certificate, key = authority.issue_server(name, ["127.0.0.1"])
    (folder / f"{name}.crt").write_bytes(authority.certificate_pem)
    (folder / f"{name}-server.crt").write_bytes(certificate)
    write_secret(folder / f"{name}-server.key", key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / f"{name}-server.crt", folder / f"{name}-server.key")
    return context


@pytest.fixture
async def urls(tmp_path: Path) -> AsyncIterator[list[str]]:
    """Two hosts of a registry, whose certificates are of the CAs `a.crt` and `b.crt`."""
    folder = tmp_path / CERTIFICATES
    folder.mkdir(parents=True)
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(
                await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_context(folder, name))
            )
            for name in ("a", "b")
        ]
        yield [f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]


async def refused(root: Path, urls: Sequence[str], *authorities: str) -> list[int]:
    """Return which hosts are refused for their certificate, where each is configured with one CA; empty for none of its own."""
    files = ContainerdFiles(
        containerd=FakeContainerd(), originals=Originals(folder=root / "originals", root=root), root=root
    )
    hosts = tuple(
        RegistryHost(url=url, ca_certs=(name,) if name else ()) for url, name in zip(urls, authorities, strict=True)
    )
    try:
        await files.probe(Registry(upstream=UPSTREAM, hosts=hosts))
    except RegistryNotReady as error:
        causes = str(error.fields["causes"]).split("; ")
        assert all("CERTIFICATE_VERIFY_FAILED" in cause for cause in causes)
        return [index for index, url in enumerate(urls) if any(cause.startswith(url) for cause in causes)]
    return []


@pytest.mark.parametrize(
    ("authorities", "expected"),
    [
        (("a.crt", "b.crt"), []),
        (("a.crt", "/etc/containerd/certs.d/registry.example/b.crt"), []),
        (("b.crt", "a.crt"), [0, 1]),
        (("a.crt", "a.crt"), [1]),
        (("b.crt", "b.crt"), [0]),
        (("a.crt", ""), [1]),
        (("", "b.crt"), [0]),
    ],
)
async def test_w34_each_host_of_a_registry_has_its_own_authorities(
    tmp_path: Path, urls: list[str], authorities: tuple[str, ...], expected: list[int]
) -> None:
    """Contract 9 W34, 6.15: in one registry each host is judged by its own `caCerts` alone, or by the machine's; by none of the others."""
    assert await refused(tmp_path, urls, *authorities) == expected
