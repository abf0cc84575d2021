"""Keep tokens from Secrets in files. There is no watch: the authorizer allows reads by name, so we poll.

Source: gardener pkg/nodeagent/controller/token (contract 7.3; W24: several paths for a Secret, mode forced).
"""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path

from agents.core import files
from agents.core.errors import RetriableError
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.models import SECRETS
from agents.runtime.controller import Controller
from agents.runtime.reconcile import Persistent, Request, Result
from agents.runtime.source import ChannelSource, StartupSource
from nodeagent.config import TokenController, TokenSync

log = get_logger(__name__)

NAMESPACE = "kube-system"
TOKEN_KEY = "token"  # noqa: S105 - the name of a key
TOKEN_MODE = 0o640
"""Static pods read the file through group 0."""
LONGEST_BACKOFF = timedelta(minutes=1)


class TokenUnavailable(RetriableError):
    """The Secret has no token, or there is no directory to put it into."""


def paths_by_secret(configs: Iterable[TokenSync]) -> Mapping[Request, tuple[Path, ...]]:
    """Group the paths by the Secret whose token they hold."""
    grouped: dict[Request, tuple[Path, ...]] = {}
    for config in configs:
        request = Request(NAMESPACE, config.secret_name)
        grouped[request] = (*grouped.get(request, ()), Path(config.path))
    return grouped


class TokenReconciler:
    """Copies the token of one Secret to all of its paths."""

    def __init__(self, *, client: Client, paths: Mapping[Request, tuple[Path, ...]], sync_period: timedelta) -> None:
        self._client = client
        self._paths = paths
        self._sync_period = sync_period

    async def reconcile(self, request: Request) -> Result:
        """Read the Secret, write what differs, come back after the sync period."""
        paths = self._paths.get(request, ())
        if not paths:
            return Result()
        secret = await self._client.get(SECRETS, request.name, namespace=request.namespace)
        token = secret.data.get(TOKEN_KEY, b"")
        if not token:
            raise TokenUnavailable("secret has no token", secret=request.name)
        failures = [failure for path in paths if (failure := await asyncio.to_thread(_write, path, token))]
        if failures:
            raise failures[0]
        return Result(requeue_after=self._sync_period)


def _write(path: Path, token: bytes) -> RetriableError | None:
    """Write one token file; the error is returned, so that the other paths of the Secret are still served."""
    if not path.parent.is_dir():
        return TokenUnavailable("directory of the token file does not exist", path=str(path))
    try:
        if files.write_atomic(path, token, mode=TOKEN_MODE):
            log.info("Token written", path=str(path))
    except files.FileError as error:
        return error
    return None


def new_controller(*, client: Client, config: TokenController, resync: ChannelSource) -> Controller:
    """Build the controller; `resync` brings Secrets whose files somebody else removed."""
    paths = paths_by_secret(config.sync_configs)
    return Controller(
        name="token",
        reconciler=Persistent(TokenReconciler(client=client, paths=paths, sync_period=config.sync_period)),
        sources=[StartupSource(paths), resync],
        concurrency=max(1, len(config.sync_configs)),
        max_backoff=LONGEST_BACKOFF,
    )
