"""Keeps tokens of ServiceAccounts in the garden fresh, in Secrets of the seed that ask for them.

Ours differs: what is asked for is remembered by a digest, so that a changed wish is fulfilled at once and not at the next renewal; a
token is reviewed once in the life of a process and not at every look; labels of a ServiceAccount that nobody asked for stay.

Source: gardener pkg/controller/tokenrequestor (contract core 9.1; W38).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

from agents.core.clock import Clock
from agents.core.duration import parse_duration
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import NotFound
from agents.kube.models import SECRETS, Secret
from agents.kube.write import Target, create_or_patch, deploy
from agents.runtime.cache import Informer
from agents.runtime.controller import Controller
from agents.runtime.reconcile import Request, Result
from gardenlet.apis.core_objects import SERVICE_ACCOUNTS
from gardenlet.controllers.tokenrequestor.contents import held, with_token, without_token
from gardenlet.controllers.tokenrequestor.controller import token_controller
from gardenlet.controllers.tokenrequestor.marks import Marks, fingerprint
from gardenlet.controllers.tokenrequestor.renewal import InvalidSecret, format_time, renewal
from gardenlet.controllers.tokenrequestor.token import change_data, request_token, store

log = get_logger(__name__)

SELECTOR = "resources.gardener.cloud/purpose=token-requestor,resources.gardener.cloud/class=garden"
FRACTION = 0.8
DEFAULT_LIFE = timedelta(hours=12)
_PREFIX = "serviceaccount.resources.gardener.cloud/"
NAME, LABELS, LIFE = f"{_PREFIX}name", f"{_PREFIX}labels", f"{_PREFIX}token-expiration-duration"
RENEW, INJECT_CA = f"{_PREFIX}token-renew-timestamp", f"{_PREFIX}inject-ca-bundle"
_TARGET = "token-requestor.resources.gardener.cloud/target-secret-"
TARGET_NAME, TARGET_NAMESPACE = f"{_TARGET}name", f"{_TARGET}namespace"
MARKS = Marks(RENEW)
_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a Secret asks for.

    Attributes:
        account: name of the ServiceAccount.
        labels: of the ServiceAccount; None leaves them as they are.
        life: of a token.
        target: Secret in the garden for the token; None keeps it in the Secret itself.
        inject_ca: whether the garden's CA goes with it.
        digest: of all that.
    """

    account: str
    labels: Mapping[str, str] | None
    life: timedelta
    target: tuple[str, str] | None
    inject_ca: bool
    digest: str

    @classmethod
    def of(cls, annotations: Mapping[str, str]) -> "Wish":
        """Read the annotations of a Secret.

        Raises:
            InvalidSecret: they cannot be fulfilled.
        """
        account = annotations.get(NAME, "")
        if not account:
            raise InvalidSecret("annotation is missing", annotation=NAME)
        where = (annotations.get(TARGET_NAMESPACE, ""), annotations.get(TARGET_NAME, ""))
        asked = {key: value for key, value in annotations.items() if key.startswith((_PREFIX, _TARGET))}
        try:
            life = parse_duration(annotations[LIFE]) if annotations.get(LIFE) else DEFAULT_LIFE
        except ValueError as error:
            raise InvalidSecret("annotation is no duration", annotation=LIFE) from error
        return cls(
            account=account,
            labels=_labels(annotations.get(LABELS, "")),
            life=life,
            target=where if all(where) else None,
            inject_ca=annotations.get(INJECT_CA, "").lower() in ("1", "t", "true"),
            digest=fingerprint(MARKS.without(asked)),
        )


@dataclass(frozen=True, slots=True)
class Parts:
    """What the controller is built from.

    Attributes:
        namespace: of the ServiceAccounts in the garden.
        seed: where the Secrets are.
        garden: where the ServiceAccounts are.
        bundle: returns the garden's CA, PEM; empty if it is the system's.
    """

    namespace: str
    seed: Client
    garden: Client
    bundle: Callable[[], bytes]
    clock: Clock
    rng: Random


class TokenReconciler:
    """Fulfils the wish of one Secret."""

    def __init__(self, parts: Parts, secrets: Informer[Secret]) -> None:
        self._with = parts
        self._secrets = secrets
        self._reviewed: dict[Request, str] = {}

    async def reconcile(self, request: Request) -> Result:
        """Ask for a token where there is none that is good, and come back when it is due."""
        secret = self._secrets.get(request)
        if secret is None or secret.metadata.deletion_timestamp:
            self._reviewed.pop(request, None)
            return Result()
        wish, now = Wish.of(secret.metadata.annotations), self._with.clock.now()
        due = await self._good_until(request, secret, wish)
        if due is None or due <= now:
            due = await self._fulfil(request, wish)
        return Result(requeue_after=max(timedelta(seconds=1), due - now))

    async def _good_until(self, request: Request, secret: Secret, wish: Wish) -> datetime | None:
        """Return when the token is to be renewed, None if there is none that is as it is wished."""
        due = MARKS.due(secret.metadata.annotations, wish.digest)
        if due is None:
            return None
        data = secret.data
        if wish.target is not None:
            try:
                found = await self._with.garden.get(SECRETS, wish.target[1], namespace=wish.target[0])
            except NotFound:
                return None
            data = found.data
        token, bundle = held(data)
        current = not wish.inject_ca or bundle == self._with.bundle()
        return due if token and current and await self._is_known(request, token) else None

    async def _is_known(self, request: Request, token: str) -> bool:
        """Tell whether the garden knows a token; asked once for each token."""
        if self._reviewed.get(request) == token:
            return True
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        answer = await self._with.garden.ask(_REVIEWS, review)
        known = (answer.get("status") or {}).get("authenticated") is True
        if known:
            self._reviewed[request] = token
        return known

    async def _fulfil(self, request: Request, wish: Wish) -> datetime:
        """Get a token, write it down where it is wanted, then when it is due; returns that."""
        await self._ensure_account(wish)
        path = SERVICE_ACCOUNTS.path(wish.account, namespace=self._with.namespace, subresource="token")
        spec = {"expirationSeconds": int(wish.life.total_seconds())}
        document = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token, expires = await request_token(self._with.garden, path, document, clock=self._with.clock)
        due = renewal(expires, self._with.clock.now(), fraction=FRACTION, rng=self._with.rng)
        bundle = self._with.bundle() if wish.inject_ca else None
        if wish.target is not None:
            await self._write_target(wish.target, token, bundle)

        def change(data: Mapping[str, bytes]) -> dict[str, bytes]:
            return without_token(data) if wish.target is not None else with_token(data, token, bundle)

        await store(self._with.seed, request, annotations=MARKS.of(due, wish.digest), change=change)
        self._reviewed[request] = token
        log.info("Token renewed", account=wish.account, renewal=format_time(due))
        return due

    async def _ensure_account(self, wish: Wish) -> None:
        def mutate(account: dict[str, Any]) -> None:
            if wish.labels is not None:
                account["metadata"]["labels"] = dict(wish.labels)
            account["automountServiceAccountToken"] = False

        await deploy(self._with.garden, Target(SERVICE_ACCOUNTS, wish.account, self._with.namespace), mutate)

    async def _write_target(self, target: tuple[str, str], token: str, bundle: bytes | None) -> None:
        def mutate(secret: dict[str, Any]) -> None:
            change_data(secret, lambda data: with_token(data, token, bundle))

        await create_or_patch(self._with.garden, Target(SECRETS, target[1], target[0]), mutate)


def _labels(text: str) -> Mapping[str, str] | None:
    if not text:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidSecret("annotation is not JSON", annotation=LABELS) from error
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InvalidSecret("annotation is no mapping of texts", annotation=LABELS)
    return found


def new_controller(parts: Parts, secrets: Informer[Secret], *, workers: int) -> Controller:
    """Build the controller; `secrets` are those that `SELECTOR` names, of all namespaces of the seed."""
    return token_controller("token-requestor", TokenReconciler(parts, secrets), secrets, MARKS, workers=workers)
