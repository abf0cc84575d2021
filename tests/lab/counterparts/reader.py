"""What the counterparts ask the API server, with an administrator's certificate."""

import base64
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.lab.counterparts.access import Access
from tests.lab.counterparts.authorization import NAMESPACE, POOL_LABEL, Facts, PoolSecret, Review

_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Reader(Access):
    """Reads live, without caches: an answer is as new as the cluster. Use as an asynchronous context manager.

    Args:
        server: URL of the API server.
        pki: folder with the CA and the administrator's pair.
        node_lag: seconds for which a new Node stays unseen. The real authorizer has a cache, which lags behind: there a
            request right after a Node's creation was seen to be refused.
    """

    def __init__(self, server: str, pki: Path, *, node_lag: float = 0.0) -> None:
        super().__init__(server, pki)
        self._node_lag = node_lag
        self._nodes_seen: dict[str, float] = {}
        self._references: dict[tuple[str, str], PoolSecret] = {}

    async def facts(self, review: Review) -> Facts:
        """Read what deciding about a request takes."""
        machine = review.machine
        if not machine:
            return Facts()
        node = self._if_known(await self.find(f"/api/v1/nodes/{machine}"))
        if review.resource == "pods" and review.name:
            return Facts(node=node, pod=await self.find(f"/api/v1/namespaces/{review.namespace}/pods/{review.name}"))
        if review.resource.startswith("certificatesigningrequests") and review.name:
            return Facts(node=node, csr=await self.find(f"{_CSRS}/{review.name}"))
        if review.resource == "secrets":
            return Facts(node=node, pool_secrets=await self._pool_secrets())
        return Facts(node=node)

    def _if_known(self, node: dict[str, Any] | None) -> dict[str, Any] | None:
        if node is None or not self._node_lag:
            return node
        since = self._nodes_seen.setdefault(node["metadata"]["uid"], time.monotonic())
        return node if time.monotonic() - since >= self._node_lag else None

    async def _pool_secrets(self) -> tuple[PoolSecret, ...]:
        """Return the OSC Secrets; each version of one is read and parsed once, as they can be large."""
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets"
        found = {}
        items = await self.items(f"{path}?labelSelector={POOL_LABEL}", accept=_METADATA_ONLY)
        for item in items:
            name, version = item["metadata"]["name"], item["metadata"]["resourceVersion"]
            known = self._references.get((name, version))
            if known is None:
                secret = await self.find(f"{path}/{name}")
                known = PoolSecret(name, references_of(secret or {}))
            found[name, version] = known
        self._references = found
        return tuple(found.values())


def references_of(secret: Mapping[str, Any]) -> tuple[tuple[str, str | None], ...]:
    """Return (name, host name) of the Secrets that an OSC Secret's files refer to; of a broken one, none."""
    data = base64.b64decode((secret.get("data") or {}).get("osc.yaml", ""))
    try:
        document = yaml.load(data, Loader=_LOADER)  # noqa: S506 - the safe loader, in C where there is one
    except yaml.YAMLError:
        return ()
    if not isinstance(document, dict):
        return ()
    files = [
        *((document.get("spec") or {}).get("files") or []),
        *((document.get("status") or {}).get("extensionFiles") or []),
    ]
    found = []
    for file in files:
        reference = (file.get("content") or {}).get("secretRef")
        if reference and reference.get("name"):
            found.append((reference["name"], file.get("hostName")))
    return tuple(found)
