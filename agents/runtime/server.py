"""The HTTP servers of an agent: health probes, and metrics. They answer before anything else can block.

Paths and answers are controller-runtime's: `/healthz` and `/readyz` ask all their checks, `/healthz/<check>` asks one, `?verbose`
lists them, `?exclude=<check>` leaves one out. Why a check failed is logged, and told only where `tell_reasons` says that it holds no secret, because the ports ask for
no authentication (contract 1.6).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Self

from aiohttp import web

from agents.core.errors import FatalError
from agents.core.logging import get_logger
from agents.runtime.health import Check, Checks, Note
from agents.runtime.metrics import CONTENT_TYPE, Metrics

log = get_logger(__name__)

CHECK_DEADLINE_SECONDS = 5.0

_STOP_SECONDS = 0.5
"""How long requests that are under way may hold up a stop."""


class HttpServer:
    """An HTTP server for as long as its context lasts.

    Args:
        name: for logs.
        bind_address: empty for all interfaces.
        port: 0 lets the system choose, for tests; see `port`.
        routes: what it answers.
    """

    def __init__(self, *, name: str, bind_address: str, port: int, routes: list[web.RouteDef]) -> None:
        self._name = name
        self._bind_address = bind_address
        self._port = port
        application = web.Application()
        application.add_routes(routes)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=_STOP_SECONDS)

    @property
    def port(self) -> int:
        """Return the port that is listened on."""
        return int(self._runner.addresses[0][1]) if self._runner.addresses else self._port

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._bind_address or None, self._port, reuse_address=True).start()
        except OSError as error:
            await self._runner.cleanup()
            raise FatalError(
                "port cannot be used", server=self._name, port=self._port, problem=error.strerror
            ) from error
        log.debug("Server started", server=self._name, port=self.port)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._runner.cleanup()


def health_server(*, bind_address: str, port: int, checks: Checks, tell_reasons: bool = False) -> HttpServer:
    """Return the server of `/healthz` and `/readyz`; whether it says why a check failed."""
    routes = [
        *_routes("healthz", checks.liveness, checks.notes, tell_reasons=tell_reasons),
        *_routes("readyz", checks.readiness, checks.notes, tell_reasons=tell_reasons),
    ]
    return HttpServer(name="health", bind_address=bind_address, port=port, routes=routes)


def metrics_server(*, bind_address: str, port: int, metrics: Metrics, more: Sequence[web.RouteDef] = ()) -> HttpServer:
    """Return the server of `/metrics`, and of what a process wants to show beside that."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    routes = [web.get("/metrics", answer), *more]
    return HttpServer(name="metrics", bind_address=bind_address, port=port, routes=routes)


def _routes(
    group: str, checks: Mapping[str, Check], notes: Mapping[str, Note], *, tell_reasons: bool
) -> list[web.RouteDef]:
    def response(failures: Mapping[str, str | None], request: web.Request, *more: str) -> web.Response:
        told = failures if tell_reasons else {name: failure and "reason withheld" for name, failure in failures.items()}
        return _response(group, told, more, verbose="verbose" in request.query)

    async def answer_all(request: web.Request) -> web.Response:
        excluded = set(request.query.getall("exclude", ()))
        asked = {name: await _ask(name, check) for name, check in checks.items() if name not in excluded}
        more = [f"[+]{name} excluded: ok" for name in checks if name in excluded]
        more += [f"warn: {name} cannot be excluded: there is no such check" for name in sorted(excluded - set(checks))]
        more += [f"[i]{name}: {note()}" for name, note in notes.items()]
        return response(asked, request, *more)

    async def answer_one(request: web.Request) -> web.Response:
        name = request.match_info["check"]
        if name not in checks:
            raise web.HTTPNotFound
        return response({name: await _ask(name, checks[name])}, request)

    return [
        web.get(f"/{group}", answer_all),
        web.get(f"/{group}/", answer_all),
        web.get(f"/{group}/{{check}}", answer_one),
    ]


async def _ask(name: str, check: Check) -> str | None:
    """Return why a check fails, None if it passes; one that raises or takes too long fails."""
    try:
        async with asyncio.timeout(CHECK_DEADLINE_SECONDS):
            failure = await check()
    except Exception as error:  # noqa: BLE001 - a broken check is a failed one
        failure = f"{type(error).__name__}: {error}"
    if failure is not None:
        log.debug("Health check failed", check=name, reason=failure)
    return failure


def _response(group: str, failures: Mapping[str, str | None], more: Sequence[str], *, verbose: bool) -> web.Response:
    failed = any(failures.values())
    if not failed and not verbose:
        return web.Response(text="ok")
    lines = [
        f"[+]{name} ok" if failure is None else f"[-]{name} failed: {failure}" for name, failure in failures.items()
    ]
    lines += more
    lines.append(f"{group} check {'failed' if failed else 'passed'}")
    return web.Response(text="\n".join(lines) + "\n", status=500 if failed else 200)
