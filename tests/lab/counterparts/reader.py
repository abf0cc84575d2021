"""What the counterparts ask the API server, with an administrator's certificate."""

import base64
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.lab.counterparts.authorization import NAMESPACE, POOL_LABEL, Facts, PoolSecret, Review

_REQUEST_SECONDS = 8.0  # below the ten seconds that the API server waits for us
_WATCH_SECONDS = 300
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Reader:
    """Reads live, without caches: an answer is as new as the cluster. Use as an asynchronous context manager.

    Args:
        server: URL of the API server.
        pki: folder with the CA and the administrator's pair.
        node_lag: seconds for which a new Node stays unseen. The real authorizer has a cache, which lags behind: there a
            request right after a Node's creation was seen to be refused.
    """

    def __init__(self, server: str, pki: Path, *, node_lag: float = 0.0) -> None:
        self._server = server
        self._node_lag = node_lag
        self._nodes_seen: dict[str, float] = {}
        self._tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._references: dict[tuple[str, str], PoolSecret] = {}

    async def __aenter__(self) -> "Reader":
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=50)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def find(self, path: str) -> dict[str, Any] | None:
        """Return an object, None if it does not exist."""
        async with self._session.get(self._server + path) as response:
            if response.status == 404:
                return None
            response.raise_for_status()
            found: dict[str, Any] = await response.json()
            return found

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
        base = f"{self._server}/api/v1/namespaces/{NAMESPACE}/secrets"
        found = {}
        async with self._session.get(
            f"{base}?labelSelector={POOL_LABEL}", headers={"Accept": _METADATA_ONLY}
        ) as response:
            response.raise_for_status()
            items = (await response.json()).get("items") or []
        for item in items:
            name, version = item["metadata"]["name"], item["metadata"]["resourceVersion"]
            known = self._references.get((name, version))
            if known is None:
                secret = await self.find(f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}")
                known = PoolSecret(name, references_of(secret or {}))
            found[name, version] = known
        self._references = found
        return tuple(found.values())

    async def watch_requests(self) -> AsyncIterator[dict[str, Any]]:
        """Yield every CertificateSigningRequest, then each that is new or changed, until the connection ends."""
        async with self._session.get(self._server + _CSRS) as response:
            response.raise_for_status()
            listed = await response.json()
        for item in listed.get("items") or []:
            yield item
        version = listed["metadata"]["resourceVersion"]
        query = f"?watch=true&timeoutSeconds={_WATCH_SECONDS}&resourceVersion={version}"
        timeout = aiohttp.ClientTimeout(total=_WATCH_SECONDS + 10)
        async with self._session.get(self._server + _CSRS + query, timeout=timeout) as response:
            response.raise_for_status()
            async for line in response.content:
                event = json.loads(line)
                if event["type"] in {"ADDED", "MODIFIED"}:
                    yield event["object"]
                elif event["type"] == "ERROR":
                    return

    async def decide(self, request: Mapping[str, Any], condition: Mapping[str, str]) -> None:
        """Add a condition through the approval subresource."""
        body = {**request, "status": {**(request.get("status") or {}), "conditions": [condition]}}
        path = f"{self._server}{_CSRS}/{request['metadata']['name']}/approval"
        async with self._session.put(path, json=body) as response:
            response.raise_for_status()


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
