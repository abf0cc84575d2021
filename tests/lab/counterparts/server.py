"""The counterparts' process: a webhook for authorization over HTTPS, and beside it the loop that approves CSRs."""

import asyncio
import json
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.lab.counterparts.approval import judge, machine_of
from tests.lab.counterparts.authorization import Decision, Effect, Review, decide
from tests.lab.counterparts.reader import Reader

WEBHOOK_PATH = "/webhooks/auth/nodeagent"
_RETRY_SECONDS = 0.2
_DECISION_SECONDS = 10.0

log = logging.getLogger("counterparts")


def answer(review: dict[str, Any], decision: Decision) -> dict[str, Any]:
    """Return the review with its status; an error is neither allowed nor denied."""
    status: dict[str, Any] = {"allowed": decision.effect is Effect.ALLOW, "reason": decision.reason}
    if decision.effect is Effect.DENY:
        status["denied"] = True
    if decision.effect is Effect.ERROR:
        status = {"allowed": False, "evaluationError": decision.reason}
    return {"apiVersion": review.get("apiVersion"), "kind": review.get("kind"), "status": status}


async def authorize(reader: Reader, review: dict[str, Any]) -> Decision:
    """Decide about a SubjectAccessReview; whatever goes wrong is an evaluation error, as the contract says."""
    question = Review.of(review)
    try:
        async with asyncio.timeout(_DECISION_SECONDS):
            return decide(question, await reader.facts(question))
    except (TimeoutError, aiohttp.ClientError) as error:
        return Decision(Effect.ERROR, f"500 {type(error).__name__}: {error}")


class Application:
    """Webhook and approver around one reader."""

    def __init__(self, reader: Reader, *, approves: bool, denies_all: bool) -> None:
        self._reader = reader
        self._approves = approves
        self._denies_all = denies_all

    def routes(self) -> web.Application:
        """Return the HTTP application."""
        application = web.Application()
        application.router.add_post(WEBHOOK_PATH, self._review)
        application.router.add_get("/healthz", self._healthy)
        return application

    async def approve_forever(self) -> None:
        """Decide about CSRs, starting again whenever the API server goes away; returns at once if switched off."""
        while self._approves:
            try:
                async for request in self._reader.watch_requests():
                    await self._approve(request)
            except (OSError, TimeoutError, aiohttp.ClientError) as error:
                log.info("watch of CSRs ended: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _approve(self, request: dict[str, Any]) -> None:
        name = request["metadata"]["name"]
        try:
            machine = machine_of(request)
        except ValueError as error:
            log.info("CSR %s cannot be decoded: %s", name, error)
            return
        if machine is None:
            return
        verdict = judge(request, node_exists=await self._reader.find(f"/api/v1/nodes/{machine}") is not None)
        await self._reader.decide(request, verdict.condition)
        log.info("CSR %s of %s: %s, %s", name, machine, "approved" if verdict.approve else "denied", verdict.message)

    async def _review(self, request: web.Request) -> web.Response:
        review = await request.json()
        decision = Decision(Effect.DENY, "a test") if self._denies_all else await authorize(self._reader, review)
        if decision.effect is not Effect.ALLOW:
            log.info("%s: %s: %s", decision.effect.value, decision.reason, json.dumps(review.get("spec")))
        return web.json_response(answer(review, decision))

    async def _healthy(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a test wants the counterparts to be.

    Attributes:
        approves: whether CSRs are decided, too.
        denies_all: whether the webhook denies everything that it is asked.
        node_lag: seconds for which the webhook does not see a new Node.
    """

    approves: bool = True
    denies_all: bool = False
    node_lag: float = 0.0


async def serve(*, server: str, pki: Path, port: int, behaviour: Behaviour) -> None:
    """Serve until the task is cancelled.

    Args:
        server: URL of the API server.
        pki: folder with `ca.crt`, the administrator's pair and our own (`counterparts.crt`, `counterparts.key`).
        port: where to listen, on all addresses.
        behaviour: what a test wants.
    """
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pki / "counterparts.crt", pki / "counterparts.key")
    async with Reader(server, pki, node_lag=behaviour.node_lag) as reader:
        application = Application(reader, approves=behaviour.approves, denies_all=behaviour.denies_all)
        runner = web.AppRunner(application.routes(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "0.0.0.0", port, ssl_context=tls).start()
            async with asyncio.TaskGroup() as group:
                group.create_task(application.approve_forever())
                group.create_task(asyncio.Event().wait())
        finally:
            await runner.cleanup()
