"""A token on its way: asked of the garden, and written into the Secret that asks, in one patch with what is noted about it."""

import base64
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from agents.core.clock import Clock
from agents.kube.client import Client
from agents.kube.errors import InvalidResponse
from agents.kube.models import SECRETS
from agents.kube.write import Target, change_until_done
from agents.runtime.reconcile import Request
from gardenlet.controllers.tokenrequestor.renewal import InvalidSecret, parse_time

Change = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]
"""Makes of a Secret's data what it shall hold."""


async def request_token(
    garden: Client, path: str, document: Mapping[str, object], *, clock: Clock
) -> tuple[str, datetime]:
    """Post a request for a token; returns the token and when it expires.

    Raises:
        InvalidResponse: no token, or one that is of no use any more: it would be asked for again at once, for ever.
    """
    status = (await garden.ask(path, document)).get("status") or {}
    token, expires = status.get("token"), status.get("expirationTimestamp")
    if not isinstance(token, str) or not token or not isinstance(expires, str):
        raise InvalidResponse("token request has no token", path=path)
    try:
        moment = parse_time(expires, "status.expirationTimestamp")
    except InvalidSecret as error:
        raise InvalidResponse("token request says no time of expiry", path=path) from error
    if moment <= clock.now():
        raise InvalidResponse("token has expired already", path=path, expires=expires)
    return token, moment


async def store(seed: Client, request: Request, *, annotations: Mapping[str, str], change: Change) -> None:
    """Write a token and its annotations into the Secret that asks; everything else of it stays.

    Others change such a Secret, too: guarded by its version, and again after a conflict.
    """

    def mutate(secret: dict[str, Any]) -> None:
        metadata = secret["metadata"]
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
        change_data(secret, change)

    await change_until_done(seed, Target(SECRETS, request.name, request.namespace), mutate)


def change_data(secret: dict[str, Any], change: Change) -> None:
    """Change the data of a Secret's JSON, which is base64 there."""
    data = {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}
    secret["data"] = {key: base64.b64encode(value).decode() for key, value in change(data).items()}
