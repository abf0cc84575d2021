"""One API server's bundle: the client, the local copies of its objects, and the events that are told to it."""

import asyncio
from dataclasses import dataclass

from agents.kube.client import Client
from agents.kube.events import EventRecorder
from agents.runtime.cache import Cache
from agents.runtime.tasks import run_forever, wait_forever

LAST_EVENTS_SECONDS = 1.0
"""How long the end waits for events to be delivered: a repeat may have waited for its turn."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that this process talks to; closed by whoever runs it."""

    name: str
    """For logs: garden, seed or shoot."""
    client: Client
    cache: Cache
    recorder: EventRecorder
    vital: bool = True
    """Whether informers without what they select count against liveness."""

    async def run(self) -> None:
        """Keep the caches up to date and tell events until cancelled, then tell what still waits and close the connections."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(run_forever(f"cache {self.name}", self.cache.run))
                group.create_task(run_forever(f"events {self.name}", self.recorder.run))
                try:
                    await wait_forever()
                finally:
                    await self.recorder.flush(deadline=LAST_EVENTS_SECONDS)
        finally:
            await self.client.close()
