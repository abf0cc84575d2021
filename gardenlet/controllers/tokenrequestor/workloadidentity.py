"""Keeps tokens of workload identities fresh, in Secrets of the seed that ask for them.

The garden issues such a token for somebody else, a cloud provider for example: there is nobody here who could review it, so it counts as
good until half of its life is over. Only the key `token` is written; `config` and the provider's label are the Secret's own.

Ours differs: what is asked for is remembered by a digest, so that a changed wish is fulfilled at once and not at the next renewal.

Source: gardener pkg/gardenlet/controller/tokenrequestor/workloadidentity (contract core 9.2; W38).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

from agents.core.clock import Clock
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.models import Secret
from agents.runtime.cache import Informer
from agents.runtime.controller import Controller
from agents.runtime.reconcile import Request, Result
from gardenlet.apis.security import GROUP, WORKLOAD_IDENTITIES
from gardenlet.controllers.tokenrequestor.contents import TOKEN
from gardenlet.controllers.tokenrequestor.controller import token_controller
from gardenlet.controllers.tokenrequestor.marks import Marks, fingerprint
from gardenlet.controllers.tokenrequestor.renewal import InvalidSecret, format_time, renewal
from gardenlet.controllers.tokenrequestor.token import request_token, store

log = get_logger(__name__)

SELECTOR = f"{GROUP}/purpose=workload-identity-token-requestor"
FRACTION = 0.5
_PREFIX = f"workloadidentity.{GROUP}/"
NAME, NAMESPACE, CONTEXT = f"{_PREFIX}name", f"{_PREFIX}namespace", f"{_PREFIX}context-object"
RENEW = f"{_PREFIX}token-renew-timestamp"
MARKS = Marks(RENEW)
_REQUIRED = ("apiVersion", "kind", "name", "uid")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a Secret asks for.

    Attributes:
        name: of the WorkloadIdentity.
        namespace: of it.
        context: what the token is for (`apiVersion`, `kind`, `name`, `uid`, maybe `namespace`); None without.
        digest: of all that.
    """

    name: str
    namespace: str
    context: Mapping[str, str] | None
    digest: str

    @classmethod
    def of(cls, annotations: Mapping[str, str]) -> "Wish":
        """Read the annotations of a Secret.

        Raises:
            InvalidSecret: they cannot be fulfilled.
        """
        for annotation in (NAME, NAMESPACE):
            if not annotations.get(annotation):
                raise InvalidSecret("annotation is missing", annotation=annotation)
        context = None if CONTEXT not in annotations else _context(annotations[CONTEXT])
        name, namespace = annotations[NAME], annotations[NAMESPACE]
        asked = {"name": name, "namespace": namespace, "context": json.dumps(context)}
        return cls(name, namespace, context, fingerprint(asked))


@dataclass(frozen=True, slots=True)
class Parts:
    """What the controller is built from.

    Attributes:
        seed: where the Secrets are.
        garden: where the workload identities are.
        life: of a token, as we ask for it; the garden may give it another.
    """

    seed: Client
    garden: Client
    life: timedelta
    clock: Clock
    rng: Random


class TokenReconciler:
    """Fulfils the wish of one Secret."""

    def __init__(self, parts: Parts, secrets: Informer[Secret]) -> None:
        self._with = parts
        self._secrets = secrets

    async def reconcile(self, request: Request) -> Result:
        """Ask for a token where there is none that is good, and come back when it is due."""
        secret = self._secrets.get(request)
        if secret is None or secret.metadata.deletion_timestamp:
            return Result()
        wish, now = Wish.of(secret.metadata.annotations), self._with.clock.now()
        due = MARKS.due(secret.metadata.annotations, wish.digest)
        if due is None or due <= now or not secret.data.get(TOKEN):
            due = await self._fulfil(request, wish)
        return Result(requeue_after=max(timedelta(seconds=1), due - now))

    async def _fulfil(self, request: Request, wish: Wish) -> datetime:
        """Get a token and write it down with the time at which it is due; returns that."""
        path = WORKLOAD_IDENTITIES.path(wish.name, namespace=wish.namespace, subresource="token")
        spec: dict[str, object] = {"expirationSeconds": int(self._with.life.total_seconds())}
        if wish.context is not None:
            spec["contextObject"] = wish.context
        document = {"apiVersion": WORKLOAD_IDENTITIES.api_version, "kind": "TokenRequest", "spec": spec}
        token, expires = await request_token(self._with.garden, path, document, clock=self._with.clock)
        due = renewal(expires, self._with.clock.now(), fraction=FRACTION, rng=self._with.rng)
        await store(
            self._with.seed,
            request,
            annotations=MARKS.of(due, wish.digest),
            change=lambda data: {**data, TOKEN: token.encode()},
        )
        log.info("Token renewed", workloadIdentity=f"{wish.namespace}/{wish.name}", renewal=format_time(due))
        return due


def _context(text: str) -> Mapping[str, str]:
    """Return the object that a token is for, with the fields that the garden knows."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidSecret("annotation is not JSON", annotation=CONTEXT) from error
    if not isinstance(found, dict):
        raise InvalidSecret("annotation is no object", annotation=CONTEXT)
    context = {key: found[key] for key in (*_REQUIRED, "namespace") if found.get(key) not in (None, "")}
    wrong = [key for key, value in context.items() if not isinstance(value, str)]
    if wrong or (missing := [key for key in _REQUIRED if key not in context]):
        raise InvalidSecret("annotation is no reference to an object", annotation=CONTEXT, fields=wrong or missing)
    return context


def new_controller(parts: Parts, secrets: Informer[Secret], *, workers: int) -> Controller:
    """Build the controller; `secrets` are those that `SELECTOR` names, of all namespaces of the seed."""
    return token_controller(
        "token-requestor-workload-identity", TokenReconciler(parts, secrets), secrets, MARKS, workers=workers
    )
