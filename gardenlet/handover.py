"""Whose seed this is: some controllers are another's where the seed is more than a seed.

In the cluster of a garden gardener-operator keeps network policies and eviction requirements, in a self-hosted shoot the shoot's own
gardenlet does. Either may become true, or end, while we run. Gardener's agent ends its process then; ours starts and stops only those
controllers. Source: gardener pkg/gardenlet/controller/networkpolicy/add.go, pkg/utils/gardener/garden.go (contract core 8; W35).
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from random import Random
from typing import NoReturn

from agents.core.errors import AgentError
from agents.core.logging import get_logger
from agents.kube.client import Client
from agents.kube.errors import NotFound
from agents.runtime.manager import End
from gardenlet.apis.core_objects import NAMESPACES
from gardenlet.apis.networking import GARDENS

log = get_logger(__name__)

PERIOD = timedelta(minutes=1)
GARDEN = "gardener-operator: this seed is the cluster of a garden"
SHOOT = "the gardenlet of the shoot: this seed is a self-hosted shoot"
_SYSTEM, _ROLE = "kube-system", "gardener.cloud/role"


async def owner(seed: Client) -> str | None:
    """Return who else keeps those objects, and why; None if that is us. A kind that is not served counts as no.

    Raises:
        ApiError: it cannot be told.
    """
    try:
        if (await seed.list(GARDENS, limit=1)).items:
            return GARDEN
    except NotFound:
        log.debug("Gardens are not served here, so this is none")
    return SHOOT if await is_self_hosted_shoot(seed) else None


async def is_self_hosted_shoot(seed: Client) -> bool:
    """Return whether a seed is a shoot that hosts its own control plane.

    Raises:
        ApiError: it cannot be told.
    """
    system = await seed.get(NAMESPACES, _SYSTEM)
    return system.metadata.labels.get(_ROLE) == "shoot"


class HandOver:
    """Starts controllers while they are ours, and ends them while they are another's.

    Args:
        seed: where to look.
        start: starts the controllers, and returns what ends them.
        rng: spreads the looks.
    """

    def __init__(self, *, seed: Client, start: Callable[[], Sequence[End]], rng: Random) -> None:
        self._seed = seed
        self._start = start
        self._rng = rng
        self._ends: Sequence[End] = ()
        self._owner: str | None = "nobody has looked yet"

    async def look(self) -> None:
        """Look, and start or end what that asks for.

        Raises:
            ApiError: it cannot be told; everything stays as it is.
        """
        found = await owner(self._seed)
        if found == self._owner:
            return
        self._owner = found
        for end in self._ends:
            end()
        self._ends = ()
        if found is None:
            log.info("Network policies and eviction requirements of this seed are ours")
            self._ends = self._start()
        else:
            log.info("Network policies and eviction requirements are left to another", owner=found)

    async def run(self) -> NoReturn:
        """Look once a minute until cancelled."""
        while True:
            await asyncio.sleep(PERIOD.total_seconds() * (1 + 0.1 * self._rng.random()))
            try:
                await self.look()
            except AgentError as error:
                log.debug("It cannot be told whose seed this is, so nothing changes", error=error)
