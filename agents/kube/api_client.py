"""kubernetes_asyncio's ApiClient on an aiohttp session of our own.

The library's session has no deadlines, follows redirects, reads `.netrc` and caches name resolution.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
from yarl import URL

from agents.kube import lean
from agents.kube.kubeconfig import ClusterAccess


def new_api_client(
    access: ClusterAccess,
    session: aiohttp.ClientSession,
    user_agent: str,
    refresh: Callable[[Any], Any],
) -> Any:
    """Return the library's ApiClient on our session; its constructor would make a session of its own.

    Args:
        access: where, and as whom.
        session: closed by the caller.
        user_agent: the header.
        refresh: coroutine function that puts the current token into the configuration it is given, before each request.
    """
    configuration = lean.load("Configuration")(host=access.url)
    credentials = access.credentials
    if credentials.token or credentials.token_file is not None:
        configuration.api_key = {"BearerToken": credentials.token}
        configuration.api_key_prefix = {"BearerToken": "Bearer"}
        configuration.refresh_api_key_hook = refresh
    client_class = lean.load("ApiClient")
    api = client_class.__new__(client_class)
    api.configuration = configuration
    api.rest_client = _Rest(session, access)
    api.default_headers = {"User-Agent": user_agent}
    if credentials.username:
        pair = f"{credentials.username}:{credentials.password}".encode()
        api.default_headers["Authorization"] = f"Basic {b64encode(pair).decode()}"
    api.cookie = None
    api.client_side_validation = False
    return api


class _Rest:
    """Stands in for the library's RESTClientObject: the same calls, our session, no redirects, bodies as bytes."""

    def __init__(self, session: aiohttp.ClientSession, access: ClusterAccess) -> None:
        self._session = session
        self._proxy = access.proxy or None
        self._server_hostname = access.tls_server_name or None
        # The library calls one method for each verb.
        self.GET = self._verb("GET")
        self.POST = self._verb("POST")
        self.PUT = self._verb("PUT")
        self.PATCH = self._verb("PATCH")
        self.DELETE = self._verb("DELETE")

    def _verb(self, method: str) -> Callable[..., Any]:
        async def send(
            url: str,
            *,
            headers: Mapping[str, str],
            query_params: list[tuple[str, str]],
            body: bytes | None = None,
            _request_timeout: aiohttp.ClientTimeout,
            **_unused: object,
        ) -> aiohttp.ClientResponse:
            return await self._session.request(
                method,
                URL(url, encoded=True).with_query(query_params),
                headers=headers,
                data=body,
                timeout=_request_timeout,
                allow_redirects=False,
                proxy=self._proxy,
                server_hostname=self._server_hostname,
            )

        return send
