"""Credentials where there are none, or odd ones: the agent stays up, says so once a minute, and tells no secret."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import structlog

from agents.core.errors import FatalError
from agents.kube.kubeconfig import ClusterAccess
from agents.kube.server_clock import ServerClock
from nodeagent.config import ApiServer, NodeAgentConfiguration
from nodeagent.credentials import ClientFactory, CredentialsManager, bootstrap_access, read_bootstrap_token
from nodeagent.paths import Paths
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.support.in_memory_clients import InMemoryClients
from tests.support.tasks import running
from tests.unit.agents.pki.conftest import Approver

TOKEN = "abcdef.0123456789abcdef"


def configuration(**sections: Any) -> NodeAgentConfiguration:
    """Return a configuration whose API server nobody listens at."""
    document = {
        "apiVersion": "nodeagent.config.gardener.cloud/v1alpha1",
        "kind": "NodeAgentConfiguration",
        "apiServer": {"server": "https://127.0.0.1:1", "caFile": "/ca.crt"},
        "controllers": {"operatingSystemConfig": {"secretName": "pool", "kubernetesVersion": "1.34.4"}},
        **sections,
    }
    return NodeAgentConfiguration.model_validate(document)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A machine below a folder."""
    found = Paths(root=tmp_path)
    found.credentials.mkdir(parents=True)
    return found


@pytest.fixture
async def manager(paths: Paths, clock: FakeClock) -> AsyncIterator[CredentialsManager]:
    """Credentials of that machine."""
    found = new_manager(paths, clock, configuration())
    yield found
    await found.close()


def new_manager(
    paths: Paths, clock: FakeClock, config: NodeAgentConfiguration, *, clients: ClientFactory | None = None
) -> CredentialsManager:
    """Return what a new process has."""
    clients = clients or ClientFactory(
        clock=ServerClock(clock=clock, name="test"), rng=Random(1), observe=lambda _method, _code, _seconds: None
    )
    return CredentialsManager(config=config, paths=paths, machine_name="machine-1", clients=clients, clock=clock)


async def obtain_for(manager: CredentialsManager, seconds: float) -> list[dict[str, Any]]:
    """Try to get credentials for some virtual seconds; returns what was logged at level error."""
    with structlog.testing.capture_logs() as lines, pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await manager.obtain()
    return [dict(line) for line in lines if line["log_level"] == "error"]


async def test_without_kubeconfig_and_token_it_is_said_once_a_minute(manager: CredentialsManager) -> None:
    """Contract 4.5, 4.2: nothing to ask with: the process stays up and says what is missing, once a minute."""
    lines = await obtain_for(manager, 299)
    assert [line["event"] for line in lines] == ["No credentials for the cluster yet, trying again"] * 5
    assert "bootstrap-token" in str(lines[0]["error"])


async def test_a_denial_is_said_once(paths: Paths, clock: FakeClock) -> None:
    """Contract 4.5: denied for ten minutes: one line with the approver's words, a request a minute, quietly; then it is issued."""
    paths.bootstrap_token.write_text(TOKEN)
    api = FakeApi()
    approver = Approver(api)
    manager = new_manager(paths, clock, configuration(), clients=InMemoryClients(api, clock))
    decided: list[str] = []

    async def decide() -> None:
        while True:
            await asyncio.sleep(1)
            name = approver.requests[-1]["metadata"]["name"]
            if name not in decided:
                decided.append(name)
                approver.decide("Denied", message=f"{name}: Node exists already")

    async with running(decide):
        lines = await obtain_for(manager, 600)
    assert [line["event"] for line in lines] == ["No credentials for the cluster yet, trying again"]
    assert "reason=Test, explanation=this request: Node exists already" in str(lines[0]["error"])
    assert len(decided) == 10

    async with asyncio.TaskGroup() as group:
        access = group.create_task(manager.obtain())
        await asyncio.sleep(1)
        approver.issue()
    assert access.result().credentials.client_certificate
    await manager.close()


async def test_a_token_that_comes_later_is_tried_within_seconds(paths: Paths, clock: FakeClock) -> None:
    """Contract 4.2: user data may bring the token after the agent has started; another token than the one tried is tried at once as well."""
    api = FakeApi()
    approver = Approver(api)
    manager = new_manager(paths, clock, configuration(), clients=InMemoryClients(api, clock))
    async with asyncio.TaskGroup() as group:
        access = group.create_task(manager.obtain())
        await asyncio.sleep(1)
        paths.bootstrap_token.write_text(TOKEN)
        await asyncio.sleep(6)
        approver.decide("Denied", message="token of another machine")
        await asyncio.sleep(3)
        paths.bootstrap_token.write_text("fedcba.0123456789abcdef")
        await asyncio.sleep(6)
        assert len(approver.requests) == 2
        approver.issue()
    assert access.result().credentials.client_certificate
    await manager.close()


@pytest.mark.parametrize("content", [b"", b"apiVersion: v1\nclusters:\n- clu", b"\x00" * 64, b"[]", b"kind: Config"])
async def test_an_unusable_kubeconfig_is_no_crash(manager: CredentialsManager, paths: Paths, content: bytes) -> None:
    """Contract 4.2, 9 W2: an empty or torn kubeconfig counts as none, is named and set aside, and ends nothing."""
    paths.kubeconfig.write_bytes(content)
    lines = await obtain_for(manager, 30)
    assert any(str(paths.kubeconfig) == line.get("path") for line in lines)
    assert paths.kubeconfig.with_name("kubeconfig.damaged").read_bytes() == content


@pytest.mark.parametrize("token", [TOKEN, "abc\ndef", "a\x00b", "\N{SNOWMAN}", "x" * 100_000])
async def test_a_token_that_does_not_work_is_in_no_log(manager: CredentialsManager, paths: Paths, token: str) -> None:
    """Contract 4.2, 4.5: whatever is in the token file, the process goes on, and no line has the token."""
    paths.bootstrap_token.write_text(token)
    paths.cluster_ca.write_text("not a certificate")
    lines = await obtain_for(manager, 30)
    assert lines
    assert token not in "".join(str({**line, "error": str(line.get("error"))}) for line in lines)


async def test_an_explicit_kubeconfig_that_cannot_be_used_is_fatal(paths: Paths, clock: FakeClock) -> None:
    """Contract 4.2: clientConnection.kubeconfig is used or the process ends; no fallback to the token."""
    paths.bootstrap_token.write_text(TOKEN)
    given = paths.root / "given"
    manager = new_manager(paths, clock, configuration(clientConnection={"kubeconfig": str(given)}))
    with pytest.raises(FatalError, match="given"):
        await manager.obtain()
    given.write_text("current-context: x\nusers: [{name: u, user: {exec: {command: /bin/evil}}}]")
    with pytest.raises(FatalError, match="given"):
        await manager.obtain()
    assert manager.explicit


def test_the_token_is_trimmed_and_optional(paths: Paths) -> None:
    """Contract 4.2: the token is the trimmed content of its file; no file is no token."""
    assert read_bootstrap_token(paths) == ""
    paths.bootstrap_token.write_text(f" {TOKEN}\n")
    assert read_bootstrap_token(paths) == TOKEN


def test_bootstrap_uses_the_fixed_ca_path(paths: Paths) -> None:
    """Contract 4.2: the CA is at its fixed path, whatever apiServer.caFile says."""
    access = bootstrap_access(configuration(), paths, TOKEN)
    assert isinstance(access, ClusterAccess)
    assert (access.server, access.ca_file, access.ca_data) == ("https://127.0.0.1:1", paths.cluster_ca, b"")
    assert TOKEN not in repr(access)


def test_an_older_configuration_brings_its_ca_inline(paths: Paths) -> None:
    """Contract 2: with only `caBundle` it is used as inline CA data, until the file is there."""
    bundle = base64.b64encode(b"pem").decode()
    config = configuration(apiServer=ApiServer(server="api.example", ca_bundle=bundle).model_dump(by_alias=True))
    assert bootstrap_access(config, paths, TOKEN).ca_data == b"pem"
    paths.cluster_ca.write_text("pem")
    assert bootstrap_access(config, paths, TOKEN).ca_file == paths.cluster_ca
