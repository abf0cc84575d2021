"""Token files, fed from Secrets of a real API server."""

import base64
import stat
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from agents.core.errors import RetriableError
from agents.kube.errors import NotFound
from agents.runtime.reconcile import Request
from agents.runtime.source import ChannelSource
from nodeagent.config import TokenController, TokenSync
from nodeagent.controllers import token
from tests.integration.nodeagent.conftest import Agent, eventually

SECRETS = "/api/v1/namespaces/kube-system/secrets"


@pytest.fixture
def secret(agent: Agent) -> Iterator[str]:
    """Name of a Secret that is removed afterwards."""
    name = f"token-{uuid4().hex[:8]}"
    yield name
    agent.api.delete(f"{SECRETS}/{name}")


def put(agent: Agent, name: str, **data: str) -> None:
    """Create or replace a Secret's data."""
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }
    agent.api.delete(f"{SECRETS}/{name}")
    agent.api.create(SECRETS, body)


def reconciler(agent: Agent, secret: str, *paths: Path) -> token.TokenReconciler:
    """Return a reconciler for one Secret."""
    by_secret = token.paths_by_secret(TokenSync(secret_name=secret, path=str(path)) for path in paths)
    return token.TokenReconciler(client=agent.client, paths=by_secret, sync_period=timedelta(hours=12))


async def test_w24_token_is_written_to_all_paths_with_its_mode(agent: Agent, secret: str, tmp_path: Path) -> None:
    """Contract 7.3, 9 W24: every path of a Secret gets the token, 0640, also where an older file was 0600 and equal."""
    put(agent, secret, token="abc")
    (tmp_path / "b").write_text("abc")
    (tmp_path / "b").chmod(0o600)
    result = await reconciler(agent, secret, tmp_path / "a", tmp_path / "b").reconcile(Request("kube-system", secret))
    assert result.requeue_after == timedelta(hours=12)
    for name in ("a", "b"):
        assert (tmp_path / name).read_text() == "abc"
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o640


@pytest.mark.parametrize("data", [{}, {"token": ""}, {"other": "x"}])
async def test_a_secret_without_token_keeps_the_file(
    agent: Agent, secret: str, tmp_path: Path, data: dict[str, str]
) -> None:
    """Contract 7.3: a missing or empty token is an error, and the old file stays."""
    put(agent, secret, **data)
    (tmp_path / "a").write_text("old")
    with pytest.raises(RetriableError):
        await reconciler(agent, secret, tmp_path / "a").reconcile(Request("kube-system", secret))
    assert (tmp_path / "a").read_text() == "old"


async def test_a_missing_secret_and_a_missing_directory_are_errors(agent: Agent, secret: str, tmp_path: Path) -> None:
    """Contract 7.3: a missing Secret is an error; parent directories are not created, other paths are served."""
    work = reconciler(agent, secret, tmp_path / "none/a", tmp_path / "b")
    with pytest.raises(NotFound):
        await work.reconcile(Request("kube-system", secret))
    put(agent, secret, token="abc")
    with pytest.raises(RetriableError):
        await work.reconcile(Request("kube-system", secret))
    assert not (tmp_path / "none").exists()
    assert (tmp_path / "b").read_text() == "abc"


async def test_tokens_are_synced_at_start_and_on_request(agent: Agent, secret: str, tmp_path: Path) -> None:
    """Contract 7.3, 7.9: each Secret is synced once at start, and again when another controller asks for it."""
    put(agent, secret, token="abc")
    resync = ChannelSource()
    config = TokenController(sync_configs=(TokenSync(secret_name=secret, path=str(tmp_path / "a")),))
    async with agent.running(token.new_controller(client=agent.client, config=config, resync=resync)):
        await eventually((tmp_path / "a").exists, what="token file")
        (tmp_path / "a").unlink()
        resync.send(Request("kube-system", secret))
        await eventually((tmp_path / "a").exists, what="token file after the resync")
