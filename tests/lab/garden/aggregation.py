"""The part of Gardener's API server that no CRD can be: tokens of workload identities, behind the real aggregation layer.

An APIService hands `security.gardener.cloud/v1alpha1` to the counterparts. That works without cluster network: the aggregator resolves a
Service of type ExternalName by itself, so `localhost` will do (endpoints on 127.0.0.1 are refused). Authentication and authorization
have happened in the API server by then. Objects are stored in CRDs of a group of the lab's own, whose name is put in and out on the way;
only the subresource `token` is answered here: counterparts contract 15.2, core 9.2.
"""

import base64
import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aiohttp import web

from tests.lab.counterparts.access import Access
from tests.lab.garden.crds import AGGREGATED, SECURITY, Kind

STORED = "security.storage.lab.internal"
"""Group of the CRDs behind."""
HOST = "security.garden.svc"
"""Name under which the aggregator expects the server's certificate."""
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
GROUPS = ".gardener.cloud"
"""With what the names of Gardener's groups end."""
ISSUER = "https://issuer.lab.internal"
_ROOT = f"/apis/{SECURITY}/v1alpha1"
_TOKENS = _ROOT + "/namespaces/{namespace}/workloadidentities/{name}/token"
_SHORTEST_SECONDS = 600
_SERVICE = "security"
_MANAGED = "kube-aggregator.kubernetes.io/automanaged"
"""Label of an APIService that the API server keeps as it wants it, as that of a CRD's group."""
_REFERENCE = ("apiVersion", "kind", "name", "uid")


def stored_kinds() -> tuple[Kind, ...]:
    """Return the kinds in which objects are stored."""
    return tuple(replace(kind, group=STORED) for kind in AGGREGATED)


def registration(port: int, ca: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Return Service and APIService that lead to us, as (collection, object).

    Args:
        port: of 127.0.0.1.
        ca: PEM, of our certificate.
    """
    service = {"type": "ExternalName", "externalName": "localhost"}
    spec = {
        "group": SECURITY,
        "version": "v1alpha1",
        "groupPriorityMinimum": 1000,
        "versionPriority": 15,
        "service": {"namespace": "garden", "name": _SERVICE, "port": port},
        "caBundle": base64.b64encode(ca).decode(),
    }
    return [
        ("/api/v1/namespaces/garden/services", {"metadata": {"name": _SERVICE}, "spec": service}),
        (API_SERVICES, {"metadata": {"name": f"v1alpha1.{SECURITY}"}, "spec": spec}),
    ]


def detached(found: Mapping[str, Any], port: int) -> dict[str, Any]:
    """Return the merge patch that points an APIService at a port of 127.0.0.1 where nobody listens."""
    spec: dict[str, Any] = {"service": {"namespace": "garden", "name": _SERVICE, "port": port}}
    if "service" not in found["spec"]:
        spec["insecureSkipTLSVerify"] = True
    return {"metadata": {"labels": {_MANAGED: None}}, "spec": spec}


def attached(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that takes that back, to the APIService that was found."""
    spec = {"service": found["spec"].get("service"), "insecureSkipTLSVerify": None}
    managed = (found["metadata"].get("labels") or {}).get(_MANAGED)
    return {"metadata": {"labels": {_MANAGED: managed}}, "spec": spec}


class Aggregated:
    """Answers what the aggregator hands on.

    Args:
        access: to the API server, where the objects are.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    def add_routes(self, application: web.Application) -> None:
        """Take the group's paths."""
        application.router.add_get(_ROOT, self._discover)
        application.router.add_post(_TOKENS, self._issue)
        application.router.add_route("*", _ROOT + "/{rest:.*}", self._pass_on)

    async def _discover(self, _request: web.Request) -> web.Response:
        found = await self._access.find(_there(_ROOT)) or {}
        token = {"name": "workloadidentities/token", "singularName": "", "namespaced": True, "verbs": ["create"]}
        found["resources"] = [*found.get("resources", ()), {**token, "kind": "TokenRequest"}]
        return web.Response(text=_back(json.dumps(found)), content_type="application/json")

    async def _issue(self, request: web.Request) -> web.Response:
        where = request.match_info
        spec = (await request.json()).get("spec") or {}
        path = f"{_ROOT}/namespaces/{where['namespace']}/workloadidentities/{where['name']}"
        identity = await self._access.find(_there(path))
        if identity is None:
            return _refused(404, "NotFound", f"workloadidentities.{SECURITY} {where['name']} not found")
        if (problem := _problem(spec)) is not None:
            return _refused(422, "Invalid", problem)
        now = dt.datetime.now(dt.UTC).replace(microsecond=0)
        expires = now + dt.timedelta(seconds=spec["expirationSeconds"])
        status = {
            "token": _token(identity, spec.get("contextObject"), now, expires),
            "expirationTimestamp": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        answer = {"apiVersion": f"{SECURITY}/v1alpha1", "kind": "TokenRequest", "spec": spec, "status": status}
        return web.json_response(answer, status=201)

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        accepted = [part for part in request.headers.get("Accept", "").split(",") if "protobuf" not in part]
        headers = {"Accept": ",".join(accepted) or "application/json"}
        if request.body_exists:
            headers["Content-Type"] = request.headers["Content-Type"]
        body = _there(await request.text()).encode() if request.body_exists else None
        async with self._access.send(request.method, _there(request.raw_path), headers=headers, body=body) as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            if "watch" in request.query:
                async for line in answer.content:
                    await response.write(_back(line.decode()).encode())
            else:
                await response.write(_back(await answer.text()).encode())
            await response.write_eof()
            return response


def _there(text: str) -> str:
    return text.replace(SECURITY, STORED)


def _back(text: str) -> str:
    return text.replace(STORED, SECURITY)


def _problem(spec: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a request for a token, as Gardener's validation sees it."""
    seconds, context = spec.get("expirationSeconds"), spec.get("contextObject")
    if not isinstance(seconds, int) or seconds < _SHORTEST_SECONDS:
        return "spec.expirationSeconds: must be at least 10 minutes"
    missing = [key for key in _REFERENCE if not (context or {}).get(key)]
    return f"spec.contextObject: lacks {', '.join(missing)}" if context is not None and missing else None


def _token(identity: Mapping[str, Any], context: object, now: dt.datetime, expires: dt.datetime) -> str:
    """Return a JWT with the claims that a cloud provider reads; nobody here checks its signature."""
    metadata = identity["metadata"]
    claims = {
        "iss": ISSUER,
        "sub": f"{SECURITY}:workloadidentity:{metadata['namespace']}:{metadata['name']}:{metadata['uid']}",
        "aud": (identity.get("spec") or {}).get("audiences") or [],
        "iat": int(now.timestamp()),
        "exp": int(expires.timestamp()),
        "jti": dt.datetime.now(dt.UTC).isoformat(),
        "gardener.cloud": {"context": context},
    }
    parts = ({"alg": "RS256", "typ": "JWT"}, claims, "unsigned")
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)


def _refused(code: int, reason: str, message: str) -> web.Response:
    status = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code}
    return web.json_response({**status, "reason": reason, "message": message}, status=code)
