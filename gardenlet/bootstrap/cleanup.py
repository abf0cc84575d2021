"""Removing what a bootstrap leaves behind: its Secret in the seed, and its credentials in the garden.

What is to be removed is in the journal of the stored kubeconfig, and the journal goes last: killed at any line, the next process goes
on. Who asked for the certificate stands in the request; where that is gone already, the journal has the token's public part.

Source: gardener pkg/gardenlet/bootstrap/bootstrap.go, DeleteBootstrapAuth (contract core 3.5).
"""

import asyncio
from datetime import timedelta
from typing import Any

from agents.core.clock import Clock
from agents.core.errors import AgentError
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import NotFound
from agents.kube.models import CERTIFICATE_SIGNING_REQUESTS, SECRETS
from agents.kube.resource import Resource
from agents.pki.pending import PendingStore
from gardenlet.apis.core_objects import CLUSTER_ROLE_BINDINGS, SERVICE_ACCOUNTS
from gardenlet.bootstrap.garden_kubeconfig import remove_material
from gardenlet.bootstrap.secrets import Journal, KubeconfigSecret, Stored

log = get_logger(__name__)

RETRY_SECONDS = 2.0
PATIENCE = timedelta(seconds=60)
"""The garden's authorizer knows a new request only after a moment, so 403 is nothing to give up for at once."""
TOKEN_USER = "system:bootstrap:"  # noqa: S105 - a prefix of user names
ACCOUNT_USER = "system:serviceaccount:"
TOKEN_NAMESPACE, TOKEN_NAME = "kube-system", "bootstrap-token-"
BINDING_PREFIX = "gardener.cloud:system:seed-bootstrapper:"


async def clean_up(
    *, seed: Client, garden: Client, secret: KubeconfigSecret, pending: PendingStore, clock: Clock
) -> bool:
    """Remove what the journal names, and a pending key that is in use; returns whether nothing is left after a minute.

    Never a reason to stop: what could not be removed stays in the journal for the next start, and is said.
    """
    until = clock.monotonic() + PATIENCE.total_seconds()
    while True:
        try:
            stored = await secret.read()
            if stored is None or stored.journal is None:
                return True
            await _remove_used_key(pending, stored)
            await remove_material(seed, stored.journal)
            await _remove_credentials(garden, stored.journal)
            await secret.forget()
        except AgentError as error:
            if clock.monotonic() >= until:
                log.error("Bootstrap credentials not removed, the next start tries again", error=error)
                return False
            log.debug("Bootstrap credentials not removed yet", error=error)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return True


async def _remove_used_key(pending: PendingStore, stored: Stored) -> None:
    kept = await pending.load()
    if kept is not None and stored.access is not None and kept.key == stored.access.credentials.client_key:
        await pending.clear()


async def _remove_credentials(garden: Client, journal: Journal) -> None:
    user = f"{TOKEN_USER}{journal.token_id}" if journal.token_id else ""
    try:
        user = (await garden.get(CERTIFICATE_SIGNING_REQUESTS, journal.request)).spec.username
    except NotFound:
        log.debug("Certificate request is gone", certificateSigningRequest=journal.request)
    if user.startswith(TOKEN_USER):
        name = TOKEN_NAME + user.removeprefix(TOKEN_USER)
        await _remove(garden, SECRETS, name, TOKEN_NAMESPACE)
    elif user.startswith(ACCOUNT_USER):
        namespace, _, name = user.removeprefix(ACCOUNT_USER).partition(":")
        await _remove(garden, SERVICE_ACCOUNTS, name, namespace)
        await _remove(garden, CLUSTER_ROLE_BINDINGS, f"{BINDING_PREFIX}{namespace}:{name}", None)


async def _remove(garden: Client, resource: Resource[Any], name: str, namespace: str | None) -> None:
    try:
        await garden.delete(resource, name, namespace=namespace)
    except NotFound:
        return
    log.info("Bootstrap credentials removed from the garden", kind=resource.kind, name=name)
