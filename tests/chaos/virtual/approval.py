"""Certificate requests are approved and signed, and old ones forgotten, as a cluster does."""

import asyncio
import base64
from datetime import timedelta

from agents.core.clock import Clock
from agents.kube.models import CERTIFICATE_SIGNING_REQUESTS
from tests.unit.agents.pki.conftest import Approver

_MOST = 3


async def approve(approver: Approver, *, clock: Clock, lifetime: timedelta) -> None:
    """Look every five seconds, for ever.

    Args:
        approver: of the API server with the requests.
        clock: the signer's.
        lifetime: of the certificates.
    """
    while True:
        await asyncio.sleep(5)
        requests = approver.requests
        for old in requests[:-_MOST]:
            approver.api.remove(CERTIFICATE_SIGNING_REQUESTS, old["metadata"]["name"])
        if requests and not requests[-1].get("status"):
            request = base64.b64decode(requests[-1]["spec"]["request"])
            approver.decide("Approved", certificate=approver.sign(request, start=clock.now(), lifetime=lifetime))
