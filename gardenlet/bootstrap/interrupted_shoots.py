"""Operations on shoots that a gardenlet before us did not finish: nobody works on them, so they are not Processing.

Source: gardener cmd/gardenlet/app/app.go (contract core 1.2 step 10). A shoot that migrates is in the list of two seeds; ours touches
only those that it is responsible for (W28).
"""

from typing import Any

from agents.core.logging import get_logger
from agents.kube.client import Client, Selector
from agents.kube.errors import NotFound
from agents.kube.write import Outcome, Target, change_until_done
from gardenlet.apis.core import OperationState
from gardenlet.apis.shoot import SHOOTS

log = get_logger(__name__)


async def abort_interrupted(garden: Client, seed_name: str) -> list[str]:
    """Set Processing operations of our shoots to Aborted; returns namespace and name of each.

    Raises:
        ApiError: not done for all; safe to repeat.
    """
    selector = Selector(label=f"name.seed.gardener.cloud/{seed_name}=true")
    aborted = []
    for shoot in (await garden.list(SHOOTS, selector=selector)).items:
        operation = shoot.status.last_operation
        if operation is None or operation.state != OperationState.PROCESSING or shoot.responsible_seed != seed_name:
            continue
        namespace, name = shoot.metadata.namespace, shoot.metadata.name
        try:
            _, outcome = await change_until_done(garden, Target(SHOOTS, name, namespace), _abort, subresource="status")
        except NotFound:
            continue
        if outcome is not Outcome.UNCHANGED:
            log.info("Operation was interrupted", namespace=namespace, shoot=name, operation=operation.type)
            aborted.append(f"{namespace}/{name}")
    return aborted


def _abort(shoot: dict[str, Any]) -> None:
    operation = (shoot.get("status") or {}).get("lastOperation") or {}
    if operation.get("state") == OperationState.PROCESSING:
        operation["state"] = OperationState.ABORTED.value
