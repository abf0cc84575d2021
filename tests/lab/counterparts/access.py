"""An administrator's asynchronous access to an API server, for the counterparts: live, without caches."""

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Self

import aiohttp

_REQUEST_SECONDS = 8.0  # below the ten seconds that the API server waits for us
_WATCH_SECONDS = 300
_CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_MERGE_PATCH = "application/merge-patch+json"


class Access:
    """Requests by path. Use as an asynchronous context manager.

    Args:
        server: URL of the API server.
        pki: folder with the CA and the administrator's pair.
    """

    def __init__(self, server: str, pki: Path) -> None:
        self._server = server
        self._tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")

    async def __aenter__(self) -> Self:
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

    async def items(self, path: str, *, accept: str = "application/json") -> list[dict[str, Any]]:
        """Return the items of a collection."""
        async with self._session.get(self._server + path, headers={"Accept": accept}) as response:
            response.raise_for_status()
            found: list[dict[str, Any]] = (await response.json()).get("items") or []
            return found

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST to a collection, or to a review."""
        async with self._session.post(self._server + path, json=dict(body)) as response:
            response.raise_for_status()
            created: dict[str, Any] = await response.json()
            return created

    async def replace(self, path: str, body: Mapping[str, Any]) -> None:
        """PUT an object."""
        async with self._session.put(self._server + path, json=dict(body)) as response:
            response.raise_for_status()

    async def merge(self, path: str, body: Mapping[str, Any]) -> None:
        """Merge patch an object."""
        headers = {"Content-Type": _MERGE_PATCH}
        async with self._session.patch(self._server + path, data=json.dumps(dict(body)), headers=headers) as response:
            response.raise_for_status()

    async def delete(self, path: str) -> None:
        """Delete an object; it may be gone already."""
        async with self._session.delete(self._server + path) as response:
            if response.status != 404:
                response.raise_for_status()

    def send(
        self, method: str, path: str, *, headers: Mapping[str, str], body: bytes | None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Send somebody else's request and return the answer as it comes, whatever its status; it may be a watch."""
        timeout = aiohttp.ClientTimeout(total=_WATCH_SECONDS + 10)
        return self._session.request(method, self._server + path, headers=dict(headers), data=body, timeout=timeout)

    async def watch(self, path: str) -> AsyncIterator[dict[str, Any]]:
        """Yield every object of a collection, then each that is new or changed, until the connection ends."""
        async with self._session.get(self._server + path) as response:
            response.raise_for_status()
            listed = await response.json()
        for item in listed.get("items") or []:
            yield item
        version = listed["metadata"]["resourceVersion"]
        query = f"?watch=true&timeoutSeconds={_WATCH_SECONDS}&resourceVersion={version}"
        timeout = aiohttp.ClientTimeout(total=_WATCH_SECONDS + 10)
        async with self._session.get(self._server + path + query, timeout=timeout) as response:
            response.raise_for_status()
            async for line in response.content:
                event = json.loads(line)
                if event["type"] in {"ADDED", "MODIFIED"}:
                    yield event["object"]
                elif event["type"] == "ERROR":
                    return

    def watch_requests(self) -> AsyncIterator[dict[str, Any]]:
        """Yield every CertificateSigningRequest, then each that is new or changed, until the connection ends."""
        return self.watch(_CSRS)

    async def decide(self, request: Mapping[str, Any], condition: Mapping[str, str]) -> None:
        """Add a condition to a CertificateSigningRequest through the approval subresource."""
        body = {**request, "status": {**(request.get("status") or {}), "conditions": [condition]}}
        await self.replace(f"{_CSRS}/{request['metadata']['name']}/approval", body)
