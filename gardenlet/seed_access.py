"""How the seed is reached: with a configured kubeconfig, else as the Pod that we are.

Source: k8s.io/client-go/rest, InClusterConfig (contract core 1.1).
"""

from collections.abc import Mapping
from pathlib import Path

from agents.core.errors import AgentError, FatalError
from agents.kube import kubeconfig
from agents.kube.kubeconfig import ClusterAccess, Credentials

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


async def seed_access(path: str, environment: Mapping[str, str], *, folder: Path = SERVICE_ACCOUNT) -> ClusterAccess:
    """Return how the seed is reached.

    Args:
        path: of a kubeconfig; empty for the service account.
        environment: of the process.
        folder: where Kubernetes mounts the service account.

    Raises:
        FatalError: there is no way.
    """
    if path:
        try:
            access = await kubeconfig.load(Path(path), allow_token_file=True, mounted=True)
        except AgentError as error:
            raise FatalError("kubeconfig for the seed cannot be used", path=path, problem=str(error)) from error
        if access is None:
            raise FatalError("kubeconfig for the seed does not exist", path=path)
        return access
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise FatalError(
            "neither a kubeconfig for the seed nor a service account: set seedClientConnection.kubeconfig or KUBECONFIG"
        )
    address = f"[{host}]" if ":" in host else host
    return ClusterAccess(
        server=f"https://{address}:{port}",
        ca_file=folder / "ca.crt",
        credentials=Credentials(token_file=folder / "token"),
        mounted=True,
    )
