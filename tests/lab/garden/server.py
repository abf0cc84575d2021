"""The process beside a garden's API server: authorizer, admission, what is aggregated, and the loops of `controllers`."""

import asyncio
import json
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.lab.counterparts.access import Access
from tests.lab.counterparts.authorization import Decision, Effect, Review
from tests.lab.counterparts.server import answer as authorization_answer
from tests.lab.garden.admission import LABELS_PATH, RESTRICTION_PATH, answer, json_patch, refusal
from tests.lab.garden.aggregation import Aggregated
from tests.lab.garden.authorization import decide, needs_object, object_path
from tests.lab.garden.controllers import Controllers

AUTHORIZER_PATH = "/webhooks/auth/seed"
_DECISION_SECONDS = 10.0

log = logging.getLogger("garden")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a test wants the counterparts to be.

    Attributes:
        approves: whether CSRs are decided, too.
    """

    approves: bool = True


class Application:
    """The webhooks around one access."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def routes(self) -> web.Application:
        """Return the HTTP application."""
        application = web.Application()
        application.router.add_post(AUTHORIZER_PATH, self._authorize)
        application.router.add_post(LABELS_PATH, self._label)
        application.router.add_post(RESTRICTION_PATH, self._restrict)
        application.router.add_get("/healthz", self._healthy)
        Aggregated(self._access).add_routes(application)
        return application

    async def _authorize(self, request: web.Request) -> web.Response:
        review = await request.json()
        decision = await self._decide(Review.of(review))
        if decision.effect is not Effect.ALLOW:
            log.info("%s: %s: %s", decision.effect.value, decision.reason, json.dumps(review.get("spec")))
        return web.json_response(authorization_answer(review, decision))

    async def _decide(self, review: Review) -> Decision:
        try:
            async with asyncio.timeout(_DECISION_SECONDS):
                found = await self._access.find(object_path(review)) if needs_object(review) else None
        except (TimeoutError, aiohttp.ClientError) as error:
            return Decision(Effect.ERROR, f"500 {type(error).__name__}: {error}")
        return decide(review, found)

    async def _label(self, request: web.Request) -> web.Response:
        review = await request.json()
        patch = json_patch(review["request"]["kind"]["kind"], review["request"]["object"])
        return web.json_response(answer(review, patch=json.dumps(patch).encode() if patch else b""))

    async def _restrict(self, request: web.Request) -> web.Response:
        review: dict[str, Any] = await request.json()
        refused = refusal(review["request"])
        if refused is not None:
            log.info("refused: %s", refused)
        return web.json_response(answer(review, refused=refused))

    async def _healthy(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")


async def serve(*, server: str, pki: Path, listen: str, port: int, behaviour: Behaviour) -> None:
    """Serve until the task is cancelled.

    Args:
        server: URL of the garden's API server.
        pki: folder with `ca.crt`, the administrator's pair and our own (`counterparts.crt`, `counterparts.key`).
        listen: address to listen on.
        port: to listen on.
        behaviour: what a test wants.
    """
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pki / "counterparts.crt", pki / "counterparts.key")
    async with Access(server, pki) as access:
        runner = web.AppRunner(Application(access).routes(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, listen, port, ssl_context=tls).start()
            await Controllers(access, approves=behaviour.approves).run()
        finally:
            await runner.cleanup()
