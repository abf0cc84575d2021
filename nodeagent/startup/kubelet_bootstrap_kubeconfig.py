"""Give the kubelet what it bootstraps itself with, until it has a kubeconfig of its own.

Source: gardener pkg/nodeagent/bootstrappers/kubelet_bootstrap_kubeconfig.go (contract 7.10).
"""

import asyncio
from collections.abc import Mapping

from agents.core import files
from agents.core.logging import get_logger
from agents.core.yamlio import dump_json
from nodeagent.config import ApiServer
from nodeagent.credentials import read_bootstrap_token
from nodeagent.paths import Paths

log = get_logger(__name__)

_NAME = "kubelet-bootstrap"


class KubeletBootstrapKubeconfig:
    """Start-up step; does nothing once the kubelet has joined."""

    def __init__(self, *, paths: Paths, api_server: ApiServer) -> None:
        self._paths = paths
        self._api_server = api_server

    async def run(self) -> None:
        """Write `kubeconfig-bootstrap` if there is a bootstrap token and the kubelet has no credentials yet."""
        await asyncio.to_thread(self._write)

    def _write(self) -> None:
        token = read_bootstrap_token(self._paths)
        if not token or self._paths.kubelet_kubeconfig.exists() or self._paths.kubelet_client_certificate.exists():
            return
        files.ensure_directory(self._paths.kubelet)
        content = dump_json(render(self._api_server, token))
        if files.write_atomic(self._paths.kubelet_bootstrap_kubeconfig, content, mode=0o600):
            log.info("Kubelet bootstrap kubeconfig written", path=str(self._paths.kubelet_bootstrap_kubeconfig))


def render(api_server: ApiServer, token: str) -> Mapping[str, object]:
    """Return the kubeconfig; the CA is a file, so that a rotated CA needs no new kubeconfig."""
    server = api_server.server if "://" in api_server.server else f"https://{api_server.server}"
    authority = (
        {"certificate-authority": api_server.ca_file}
        if api_server.ca_file
        else {"certificate-authority-data": api_server.ca_bundle}
    )
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _NAME, "cluster": {"server": server, **authority}}],
        "users": [{"name": _NAME, "user": {"token": token}}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME}}],
        "current-context": _NAME,
    }
