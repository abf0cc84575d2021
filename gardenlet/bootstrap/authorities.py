"""Keeping up with the garden's certificate authorities.

The garden publishes them in a ConfigMap. What differs from the stored kubeconfig is tried first, together with the old one if need be, then
stored, and used by all clients. A ConfigMap that is missing or empty changes nothing: trust is never taken back by an omission. `none` or
`null` means the system's authorities, and never no verification.

Source: gardener pkg/gardenlet/bootstrap/util/util.go (contract core 3.6).
"""

import base64
import binascii
from dataclasses import dataclass, replace
from datetime import timedelta

from agents.core.errors import RetriableError
from agents.core.logging import get_logger
from agents.kube.errors import NotFound, Unavailable
from agents.kube.kubeconfig import ClusterAccess
from agents.runtime.controller import Controller
from agents.runtime.reconcile import Persistent, Request, Result
from agents.runtime.source import StartupSource
from gardenlet.apis.core_objects import CONFIG_MAPS
from gardenlet.bootstrap.clients import GardenClients
from gardenlet.bootstrap.secrets import KubeconfigSecret

log = get_logger(__name__)

PERIOD = timedelta(minutes=10)
NAMESPACE, NAME, KEY = "gardener-system-public", "kube-root-ca.crt", "ca.crt"
_SYSTEM = ("none", "null")


class AuthoritiesNotUsable(RetriableError):
    """What the garden publishes does not verify the garden; the authorities before stay in use."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What this is built from.

    Attributes:
        secret: where the kubeconfig is.
        clients: of the garden.
        override: of the configuration: base64 of a bundle, or `none`; wins over what the garden publishes.
    """

    secret: KubeconfigSecret
    clients: GardenClients
    override: str = ""


class AuthoritiesReconciler:
    """Compares what is published with what is stored."""

    def __init__(self, parts: Parts) -> None:
        self._with = parts
        self._said = False

    async def reconcile(self, _request: Request) -> Result:
        """Store and use what differs, if it works."""
        await self._with.clients.catch_up()
        stored = await self._with.secret.read()
        if stored is None or stored.access is None:
            return Result(requeue_after=PERIOD)
        wanted = await self._wanted()
        if wanted is not None and (stored.access.ca_file is not None or stored.access.ca_data != wanted):
            await self._change(stored.access, wanted)
        return Result(requeue_after=PERIOD)

    async def _wanted(self) -> bytes | None:
        """Return the authorities, PEM, empty for the system's; None if nobody says."""
        text = await self._published()
        if text in _SYSTEM:
            return b""
        if not text:
            if not self._said:
                self._said = True
                log.error(
                    "Garden publishes no certificate authorities, those of the kubeconfig stay in use",
                    configMap=f"{NAMESPACE}/{NAME}",
                )
            return None
        self._said = False
        return text.encode()

    async def _published(self) -> str:
        override = self._with.override
        if override:
            if override in _SYSTEM:
                return override
            try:
                return base64.b64decode(override, validate=True).decode()
            except (binascii.Error, ValueError) as error:
                raise AuthoritiesNotUsable("gardenClientConnection.gardenClusterCACert is not base64 of PEM") from error
        try:
            found = await self._with.clients.first.get(CONFIG_MAPS, NAME, namespace=NAMESPACE)
        except NotFound:
            return ""
        return found.data.get(KEY, "")

    async def _change(self, access: ClusterAccess, wanted: bytes) -> None:
        """Try the new ones alone, then with the old ones; the garden may show a certificate of the old ones for a while."""
        tries = [replace(access, ca_file=None, ca_data=wanted)]
        if wanted and access.ca_data:
            tries.append(replace(access, ca_file=None, ca_data=wanted.rstrip(b"\n") + b"\n" + access.ca_data))
        for candidate in tries:

            async def keep(found: ClusterAccess = candidate) -> None:
                await self._with.secret.store(found, keep_operation=True)

            try:
                await self._with.clients.switch(candidate, keep=keep)
            except Unavailable as error:
                log.info("Garden is not verified with these authorities", error=error)
                continue
            log.info("Certificate authorities of the garden changed", together=candidate.ca_data != wanted)
            return
        raise AuthoritiesNotUsable("published authorities do not verify the garden", configMap=f"{NAMESPACE}/{NAME}")


def new_controller(parts: Parts, request: Request) -> Controller:
    """Build the controller; the request is the Secret with the kubeconfig."""
    return Controller(
        name="garden-authorities",
        reconciler=Persistent(AuthoritiesReconciler(parts)),
        sources=[StartupSource([request])],
        max_backoff=PERIOD,
    )
