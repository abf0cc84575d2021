"""A small synchronous client with an administrator's rights, for tests and the demo.

The product's own client is asynchronous and is what is being judged, so the judge speaks plain HTTP: one fresh
connection per request, which also makes it indifferent to restarts of the API server.
"""

import http.client
import json
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.lab.errors import ApiError, LabError

T = TypeVar("T")
Object = dict[str, Any]

_TOO_MANY_REQUESTS = 429
_MERGE_PATCH = "application/merge-patch+json"


def wait_for(condition: Callable[[], T | None], *, timeout: float, what: str, interval: float = 0.05) -> T:
    """Poll until a condition returns something true, and return that.

    A LabError or OSError from the condition counts as "not yet": servers restart while we wait.

    Raises:
        LabError: the time is over; the text says what was waited for and what was seen last.
    """
    started = time.monotonic()
    seen: object = None
    while True:
        try:
            value = condition()
            if value:
                return value
            seen = value
        except (LabError, OSError, http.client.HTTPException) as error:
            seen = error
        if time.monotonic() - started > timeout:
            raise LabError(f"waited {timeout:g} s for {what}; last seen: {str(seen)[:2000]!r}")
        time.sleep(interval)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files that identify a client to the API server; None for a client without a certificate."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None
    token: str | None = None


class Api:
    """Requests by path: `/api/v1/nodes/worker-1`, `/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x`."""

    def __init__(self, server: str, credentials: Credentials, *, timeout: float = 10.0) -> None:
        parts = urllib.parse.urlsplit(server)
        self._host, self._port = parts.hostname or "", parts.port or 443
        self._timeout = timeout
        self._token = credentials.token
        self._context = ssl.create_default_context(cafile=str(credentials.ca))
        if credentials.certificate is not None and credentials.key is not None:
            self._context.load_cert_chain(credentials.certificate, credentials.key)
        self._kept: http.client.HTTPSConnection | None = None

    def __str__(self) -> str:
        return f"{self._host}:{self._port}"

    def _connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._context)

    @contextmanager
    def one_connection(self) -> Iterator[None]:
        """Send all requests of a block over one connection, so that a measurement has no TLS handshakes in it."""
        self._kept = self._connect()
        try:
            self._kept.connect()
            yield
        finally:
            self._kept.close()
            self._kept = None

    @contextmanager
    def watch(self, path: str, **query: str) -> Iterator[Iterator[Object]]:
        """Open a watch on a collection; yields an iterator of events as the server sends them."""
        connection = self._connect()
        try:
            suffix = urllib.parse.urlencode({"watch": "true", **query})
            connection.request("GET", f"{path}?{suffix}", headers=self._headers())
            response = connection.getresponse()
            yield (json.loads(line) for line in iter(response.readline, b""))
        finally:
            connection.close()

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "gardener-lab"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def raw(
        self, method: str, path: str, *, body: bytes | None = None, content_type: str = "application/json"
    ) -> tuple[int, bytes]:
        """Send one request; returns status and body whatever the status is."""
        connection = self._kept or self._connect()
        headers = self._headers()
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            connection.request(method, path, body=body, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            if connection is not self._kept:
                connection.close()

    def request(
        self, method: str, path: str, body: Object | None = None, *, content_type: str = "application/json"
    ) -> Object:
        """Send one request and decode the answer.

        Raises:
            ApiError: the status is 300 or above.
        """
        data = None if body is None else json.dumps(body).encode()
        status, text = self.raw(method, path, body=data, content_type=content_type)
        until = time.monotonic() + self._timeout
        while status == _TOO_MANY_REQUESTS and time.monotonic() < until:
            # "Storage is (re)initializing", for a moment after a kind was defined.
            time.sleep(0.2)
            status, text = self.raw(method, path, body=data, content_type=content_type)
        try:
            decoded: Object = json.loads(text)
        except ValueError:
            decoded = {"message": text.decode(errors="replace")[:256]}
        if status >= 300:
            raise ApiError(status, str(decoded.get("reason", "")), f"{method} {path}: {decoded.get('message', '')}")
        return decoded

    def get(self, path: str) -> Object:
        """Read one object."""
        return self.request("GET", path)

    def find(self, path: str) -> Object | None:
        """Read one object, None if it does not exist."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, path: str, **query: str) -> list[Object]:
        """Return the items of a collection; query: fieldSelector, labelSelector."""
        suffix = f"?{urllib.parse.urlencode(query)}" if query else ""
        items: list[Object] = self.get(path + suffix).get("items") or []
        return items

    def create(self, path: str, body: Mapping[str, Any]) -> Object:
        """POST to a collection."""
        return self.request("POST", path, dict(body))

    def ensure(self, path: str, body: Mapping[str, Any]) -> None:
        """Create an object unless one of that name exists."""
        try:
            self.create(path, body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    def replace(self, path: str, body: Mapping[str, Any]) -> Object:
        """PUT an object."""
        return self.request("PUT", path, dict(body))

    def patch(self, path: str, body: Mapping[str, Any]) -> Object:
        """Merge patch an object."""
        return self.request("PATCH", path, dict(body), content_type=_MERGE_PATCH)

    def patch_strategic(self, path: str, body: Mapping[str, Any]) -> Object:
        """Send a strategic merge patch: entries of lists are told by their key, so others stay."""
        return self.request("PATCH", path, dict(body), content_type="application/strategic-merge-patch+json")

    def delete(self, path: str) -> None:
        """Delete an object; it may be gone already."""
        try:
            self.request("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise

    def ready(self) -> bool:
        """Whether the API server says that it is ready."""
        return self.raw("GET", "/readyz")[0] == 200
