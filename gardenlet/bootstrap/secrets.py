"""What gardenlet keeps in Secrets of the seed: its kubeconfig for the garden, and a key that has no certificate yet.

The kubeconfig's Secret must not exist before there is a kubeconfig: whoever deploys gardenlets takes its existence for "bootstrapped".
So the key that waits is in a Secret of its own.

An annotation of ours is the journal of what a bootstrap leaves behind. It is written together with the kubeconfig, and removed when
all of that is gone, so a process that is killed in between finishes it later; what is not in the journal is never removed.

Source: gardener pkg/gardenlet/bootstrap/util (contract core 3.1, 3.2, 3.4).
"""

import base64
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from agents.core.logging import get_logger
from agents.kube import kubeconfig
from agents.kube.client import Client
from agents.kube.errors import NotFound
from agents.kube.kubeconfig import ClusterAccess, InvalidKubeconfig
from agents.kube.models import SECRETS, Secret
from agents.kube.write import Target, deploy
from agents.pki.certificate import InvalidCertificate, check_key_pair
from agents.pki.pending import PendingRequest
from gardenlet.apis.constants import OPERATION
from gardenlet.config import SecretReference

log = get_logger(__name__)

KEY = "kubeconfig"
NAME = "gardenlet"
"""Of cluster, user and context in it."""
RENEW = "renew"
"""Value of the operation annotation that asks for a new certificate."""
JOURNAL = "agents.gardener.cloud/bootstrap-leftovers"
PENDING_SUFFIX = "-pending"


class Journal(BaseModel):
    """What a bootstrap leaves behind."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    request: str
    """Name of the CertificateSigningRequest."""
    token_id: str = ""
    """Public part of the bootstrap token, if that is what was used."""
    secret_name: str = ""
    secret_namespace: str = ""
    secret_uid: str = ""
    """Of the Secret with the bootstrap kubeconfig, in the seed."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What the Secret holds.

    Attributes:
        access: None if the kubeconfig cannot be used; then `problem` says why.
        problem: for people; empty if there is none.
        journal: what is still to be removed.
        renew: whether a new certificate is asked for.
    """

    access: ClusterAccess | None
    problem: str = ""
    journal: Journal | None = None
    renew: bool = False


class KubeconfigSecret:
    """The Secret with our kubeconfig for the garden.

    Args:
        client: the seed.
        reference: which Secret.
    """

    def __init__(self, client: Client, reference: SecretReference) -> None:
        self._client = client
        self._target = Target(SECRETS, reference.name, reference.namespace)

    async def read(self) -> Stored | None:
        """Return what is stored; None if there is no Secret, or no kubeconfig in it.

        Raises:
            ApiError: the seed does not answer, or refuses.
        """
        secret = await _get(self._client, self._target)
        content = b"" if secret is None else secret.data.get(KEY, b"")
        if secret is None or not content:
            return None
        annotations = secret.metadata.annotations
        journal = _journal(annotations.get(JOURNAL, ""))
        renew = annotations.get(OPERATION) == RENEW
        try:
            return Stored(usable(content), journal=journal, renew=renew)
        except (InvalidKubeconfig, InvalidCertificate) as error:
            return Stored(None, str(error), journal, renew)

    async def store(
        self, access: ClusterAccess, *, journal: Journal | None = None, keep_operation: bool = False
    ) -> None:
        """Write a kubeconfig, with the journal of what it leaves behind, and nothing else.

        Args:
            access: where, and as whom.
            journal: None keeps what is there.
            keep_operation: keep a request for a new certificate, as this is none.

        Raises:
            InvalidKubeconfig: what was to be written cannot be read back (terminal).
            ApiError: not written.
        """
        content = kubeconfig.render(access, name=NAME)
        usable(content)

        def mutate(secret: dict[str, Any]) -> None:
            annotations = dict(secret["metadata"].get("annotations") or {})
            if not keep_operation:
                annotations.pop(OPERATION, None)
            if journal is not None:
                annotations[JOURNAL] = journal.model_dump_json()
            secret["metadata"]["annotations"] = annotations
            secret["data"] = {KEY: base64.b64encode(content).decode()}

        await deploy(self._client, self._target, mutate)
        log.info("Kubeconfig for the garden stored", secret=f"{self._target.namespace}/{self._target.name}")

    async def forget(self) -> None:
        """Remove the journal: nothing is left to be removed."""

        def mutate(secret: dict[str, Any]) -> None:
            annotations = dict(secret["metadata"].get("annotations") or {})
            annotations.pop(JOURNAL, None)
            secret["metadata"]["annotations"] = annotations

        await deploy(self._client, self._target, mutate)


class PendingSecret:
    """A `PendingStore` in a Secret beside that of the kubeconfig."""

    def __init__(self, client: Client, reference: SecretReference) -> None:
        self._client = client
        self._target = Target(SECRETS, reference.name + PENDING_SUFFIX, reference.namespace)

    async def load(self) -> PendingRequest | None:
        """Return what the Secret says; a damaged one counts as none.

        Raises:
            ApiError: the seed does not answer, or refuses.
        """
        secret = await _get(self._client, self._target)
        if secret is None:
            return None
        data = secret.data
        if not all(data.get(key) for key in ("name", "key", "request")):
            log.error("Pending certificate request is damaged", secret=self._target.name)
            return None
        return PendingRequest(
            data["name"].decode(errors="replace"),
            data["key"],
            data["request"],
            data.get("asked-by", b"").decode(errors="replace"),
            data.get("uid", b"").decode(errors="replace") or None,
        )

    async def save(self, pending: PendingRequest) -> None:
        """Write the Secret.

        Raises:
            ApiError: not written.
        """
        data = {
            "name": pending.name.encode(),
            "key": pending.key,
            "request": pending.request,
            "asked-by": pending.asked_by.encode(),
            "uid": (pending.uid or "").encode(),
        }

        def mutate(secret: dict[str, Any]) -> None:
            secret["data"] = {key: base64.b64encode(value).decode() for key, value in data.items() if value}

        await deploy(self._client, self._target, mutate)

    async def clear(self) -> None:
        """Remove the Secret.

        Raises:
            ApiError: not removed.
        """
        try:
            await self._client.delete(SECRETS, self._target.name, namespace=self._target.namespace)
        except NotFound:
            return


def usable(content: bytes) -> ClusterAccess:
    """Return what a kubeconfig out of a Secret says; files and programs that it names are refused.

    Raises:
        InvalidKubeconfig: it cannot be used (terminal).
        InvalidCertificate: certificate and key do not belong together (terminal).
    """
    access = kubeconfig.parse(content)
    credentials = access.credentials
    if credentials.client_certificate:
        check_key_pair(credentials.client_certificate, credentials.client_key)
    elif not credentials.token and not credentials.username:
        raise InvalidKubeconfig("kubeconfig has no credentials")
    return access


async def _get(client: Client, target: Target) -> Secret | None:
    """Return a Secret, None if there is none."""
    try:
        return await client.get(SECRETS, target.name, namespace=target.namespace)
    except NotFound:
        return None


def _journal(text: str) -> Journal | None:
    if not text:
        return None
    try:
        return Journal.model_validate_json(text)
    except ValidationError:
        log.error("Journal of the bootstrap is not readable", annotation=JOURNAL)
        return None
