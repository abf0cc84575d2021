"""A replica in a process of its own: leads when it may, says so on stdout, and ends as the manager ends it.

Arguments: kubeconfig, name of the Lease in `default`, hostname, Pod UID (may be empty), and the three times in seconds.
Each line is a moment on the machine's monotonic clock and what happened.
"""

import asyncio
import sys
import time
from datetime import timedelta
from pathlib import Path
from random import Random

from agents.core import logging
from agents.core.clock import SystemClock
from agents.core.shutdown import Shutdown
from agents.kube import kubeconfig
from agents.kube.client import Client
from agents.kube.transport import HttpTransport
from agents.runtime.controller import Controller, Environment
from agents.runtime.election import ElectionTimes, LeaderElector, new_identity
from agents.runtime.health import InformerSync
from agents.runtime.manager import Manager
from agents.runtime.metrics import Metrics
from agents.runtime.reconcile import Request, Result
from agents.runtime.source import StartupSource


def say(what: str) -> None:
    """Print a line."""
    print(f"{time.monotonic():.6f} {what}", flush=True)


class Work:
    """What only a leader does."""

    async def reconcile(self, _request: Request) -> Result:
        """Lead until cancelled."""
        say("leads")
        try:
            await asyncio.sleep(3600)
        finally:
            say("stopped")
        return Result()


async def main() -> int:
    """Run one replica."""
    path, name, hostname, pod_uid, *seconds = sys.argv[1:]
    logging.configure("debug", "json")
    clock, rng, shutdown = SystemClock(), Random(), Shutdown()
    access = kubeconfig.parse(Path(path).read_bytes())
    client = Client(transport=HttpTransport(access, user_agent="replica/1", clock=clock), rng=rng)
    elector = LeaderElector(
        client=client,
        namespace="default",
        name=name,
        identity=new_identity(hostname=hostname, pod_uid=pod_uid, rng=rng),
        shutdown=shutdown,
        clock=clock,
        rng=rng,
        times=ElectionTimes(*(timedelta(seconds=float(value)) for value in seconds)),
    )
    manager = Manager(
        environment=Environment(clock=clock, rng=rng, metrics=Metrics()),
        shutdown=shutdown,
        informer_sync=InformerSync(clock=clock),
        election=elector.leading(),
        controllers=[Controller(name="work", reconciler=Work(), sources=[StartupSource([Request("", "a")])])],
    )
    say("starts")
    try:
        return await manager.run()
    finally:
        await client.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
