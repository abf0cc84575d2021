"""Bootstrap tokens: what a machine has before it has a certificate."""

import datetime as dt
import secrets
from typing import Any

from tests.lab.credentials import remember

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


def new_token() -> str:
    """Return a random bootstrap token, `<6 characters>.<16 characters>`; nothing may print what comes after the dot."""
    identifier, secret = ("".join(secrets.choice(_ALPHABET) for _ in range(length)) for length in (6, 16))
    return f"{identifier}.{remember(secret)}"


def token_secret(token: str, *, validity: dt.timedelta, now: dt.datetime) -> dict[str, Any]:
    """Return the Secret by which the API server knows a token."""
    identifier, _, secret = token.partition(".")
    expires = (now + validity).astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "metadata": {"name": f"bootstrap-token-{identifier}", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": identifier,
            "token-secret": secret,
            "expiration": expires,
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
        },
    }
