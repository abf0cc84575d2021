"""Before the legacy proxy port may go, every shoot of this seed must have stopped using it.

Source: gardener cmd/gardenlet/app/migration.go (contract core 1.2 step 12).
"""

from agents.core.errors import FatalError
from agents.kube.client import Client, Selector
from gardenlet.apis.core import ConditionStatus, OperationState
from gardenlet.apis.shoot import SHOOTS, Shoot

GATE = "RemoveHTTPProxyLegacyPort"
CONSTRAINT = "UsesUnifiedHTTPProxyPort"
MOST_NAMED = 10
_UNFINISHED_TYPES = ("Create", "Delete")


class LegacyPortInUse(FatalError):
    """The gate is on too early. The process ends and frees the leader's Lease: a replica without the gate can reconcile those shoots."""


async def check_unified_port(garden: Client, seed_name: str) -> None:
    """Check that no shoot of the seed needs the port that the feature gate removes.

    Raises:
        LegacyPortInUse: with the first 10 of those that do.
        ApiError: the garden does not answer.
    """
    selector = Selector(label=f"name.seed.gardener.cloud/{seed_name}=true")
    shoots = (await garden.list(SHOOTS, selector=selector)).items
    legacy = sorted(
        f"{shoot.metadata.namespace}/{shoot.metadata.name}"
        for shoot in shoots
        if shoot.responsible_seed == seed_name and _concerned(shoot) and not _unified(shoot)
    )
    if legacy:
        raise LegacyPortInUse(
            f"shoots still use the legacy proxy port; switch the feature gate {GATE} off until each of them was reconciled",
            constraint=CONSTRAINT,
            shoots=", ".join(legacy[:MOST_NAMED]),
            number=len(legacy),
        )


def _concerned(shoot: Shoot) -> bool:
    """Return whether the constraint says something about a shoot: it has workers, and its creation or deletion is not under way."""
    operation = shoot.status.last_operation
    if not shoot.spec.provider.workers or operation is None:
        return False
    return operation.type not in _UNFINISHED_TYPES or operation.state == OperationState.SUCCEEDED


def _unified(shoot: Shoot) -> bool:
    return any(one.type == CONSTRAINT and one.status == ConditionStatus.TRUE for one in shoot.status.constraints)
