"""What the agent may do at the API server: are its credentials accepted, may it read its Secret, is that one valid."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

from agents.core import files
from agents.core.clock import Clock
from agents.core.errors import AgentError
from agents.kube import kubeconfig
from agents.kube.errors import ApiError, Forbidden, NotFound, Unauthorized
from agents.kube.kubeconfig import ClusterAccess
from agents.kube.models import SECRETS, Secret
from agents.kube.server_clock import ServerClock
from agents.pki.certificate import check_key_pair
from nodeagent.config import NodeAgentConfiguration
from nodeagent.controllers.operatingsystemconfig import desired
from nodeagent.credentials import ClientFactory, bootstrap_access, read_bootstrap_token
from nodeagent.host.hostname import read_hostname
from nodeagent.inspection.diagnose import Broken, Finding, Fine, LinkName
from nodeagent.inspection.way import DEADLINE
from nodeagent.paths import Paths
from osc.errors import InvalidOSC, MissingPayload

NAMESPACE = "kube-system"
_MOST_PROBLEMS = 3


@dataclass(frozen=True, slots=True)
class Stored:
    """Credentials on the disk.

    Attributes:
        access: where the API server is, and as whom; with the bootstrap token where there is no certificate yet.
        joined: whether there is a certificate, or a configured kubeconfig.
        problem: why they cannot be used.
    """

    access: ClusterAccess
    joined: bool
    problem: Broken | None = None


def read_stored(config: NodeAgentConfiguration, paths: Paths, clock: Clock) -> Stored:
    """Return what the agent would use; blocking, never raises. As `CredentialsManager`, but nothing is requested or set aside."""
    configured = config.client_connection.kubeconfig
    path = paths.root / configured.lstrip("/") if configured else paths.kubeconfig
    try:
        token = read_bootstrap_token(paths)
    except files.FileError:
        token = ""
    fallback = bootstrap_access(config, paths, token)
    renew = "remove it and bring a new bootstrap token by user data, so that the agent requests another certificate"
    try:
        content = files.read_optional(path)
        if content is None:
            return Stored(fallback, joined=False, problem=_missing(path, token, configured=bool(configured)))
        access = kubeconfig.parse(content, directory=path.parent, allow_token_file=bool(configured))
        certificate = access.credentials.client_certificate
        if certificate:
            leaf = check_key_pair(certificate, access.credentials.client_key)
            if leaf.expired(clock.now()):
                cause = f"the client certificate in {path} has expired at {leaf.not_after:%Y-%m-%dT%H:%M:%SZ}"
                return Stored(access, joined=True, problem=Broken(cause, renew))
    except AgentError as error:
        return Stored(fallback, joined=False, problem=Broken(f"{path} cannot be used: {error.message}", renew))
    return Stored(access, joined=True)


def _missing(path: Path, token: str, *, configured: bool) -> Broken | None:
    if configured:
        return Broken(
            f"the configured kubeconfig {path} does not exist", "write it, or change clientConnection.kubeconfig"
        )
    if not token:
        return Broken(
            "there is neither a client certificate nor a bootstrap token", "let new user data bring a bootstrap token"
        )
    return None


async def examine(
    stored: Stored, config: NodeAgentConfiguration, *, paths: Paths, clock: Clock
) -> Mapping[LinkName, Finding]:
    """Look at the links from credentials to validation; stops at the first that is broken."""
    if stored.problem is not None:
        return {"credentials": stored.problem}
    clients = ClientFactory(
        clock=ServerClock(clock=clock, name="shoot"), rng=SystemRandom(), observe=lambda _method, _code, _seconds: None
    )
    client, seconds = clients.client(stored.access), DEADLINE.total_seconds()
    name = config.controllers.operating_system_config.secret_name
    try:
        if not stored.joined:
            await client.get_raw("/version", deadline=seconds)
            return {"credentials": _NOT_JOINED}
        secret = await client.get(SECRETS, name, namespace=NAMESPACE, deadline=seconds)
    except ApiError as error:
        return _of_answer(error, name, joined=stored.joined)
    except AgentError as error:
        return {"credentials": Broken(f"credentials cannot be used: {error.message}", "look at the agent's journal")}
    finally:
        await client.close()
    found: dict[LinkName, Finding] = {"credentials": Fine("accepted"), "authorization": Fine()}
    return {**found, **await asyncio.to_thread(_validate, secret, paths)}


_NOT_JOINED = Broken(
    "there is no client certificate yet; the bootstrap token is accepted",
    "look whether the request is approved: kubectl get csr, names begin with node-agent-csr-",
)


def _of_answer(error: ApiError, name: str, *, joined: bool) -> Mapping[LinkName, Finding]:
    if isinstance(error, Unauthorized):
        whose = "the client certificate" if joined else "the bootstrap token"
        next_step = (
            "compare its issuer with the cluster's client CA; else reset and join the machine again"
            if joined
            else "bootstrap tokens expire: let new user data bring another one"
        )
        return {"credentials": Broken(f"the API server does not accept {whose}", next_step)}
    found: dict[LinkName, Finding] = {"credentials": Fine("accepted")}
    if isinstance(error, Forbidden):
        return found | {
            "authorization": Broken(
                f"the agent may not read Secret {NAMESPACE}/{name}",
                "compare the label worker.gardener.cloud/gardener-node-agent-secret-name of Node and Machine with that name",
            )
        }
    found["authorization"] = Fine()
    if isinstance(error, NotFound):
        return found | {
            "secret": Broken(
                f"Secret {NAMESPACE}/{name} does not exist",
                "look at the Shoot's last operation: gardenlet writes it, or compare secretName in the configuration",
            )
        }
    cause = f"the API server does not serve the Secret: {error.message}" + (
        f" ({error.status})" if error.status else ""
    )
    return found | {"secret": Broken(cause, "look at the health of the API server and of etcd behind it")}


def _validate(secret: Secret, paths: Paths) -> Mapping[LinkName, Finding]:
    try:
        desired.read(secret, hostname=read_hostname(), paths=Paths(), search_path="")
    except MissingPayload as error:
        name = secret.metadata.name
        return {
            "secret": Broken(f"Secret {NAMESPACE}/{name}: {error.problems[0]}", "look at the Shoot's last operation")
        }
    except InvalidOSC as error:
        first = "; ".join(str(problem) for problem in error.problems[:_MOST_PROBLEMS])
        more = f" and {len(error.problems) - _MOST_PROBLEMS} more" if len(error.problems) > _MOST_PROBLEMS else ""
        next_step = "whoever wrote these fields has to mend them: the Shoot, or an extension; gardener-node-agent validate names all"
        return {
            "secret": Fine(),
            "validation": Broken(f"the OperatingSystemConfig is not valid: {first}{more}", next_step),
        }
    return {"secret": Fine(), "validation": Fine()}
