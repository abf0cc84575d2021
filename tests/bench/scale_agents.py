"""One process with many node agents: their real code on a real API server, each with a disk and a systemd of its own.

Started by `tests.bench.scale`; ends with SIGTERM.
"""

import argparse
import asyncio
import contextlib
import signal
from pathlib import Path
from random import Random
from typing import cast

from agents.core.clock import Clock, SystemClock
from agents.core.generations import Generations
from agents.core.shutdown import Shutdown
from agents.kube import kubeconfig
from agents.kube.client import Client
from agents.kube.events import EventRecorder
from agents.kube.kubeconfig import ClusterAccess
from agents.kube.models import NODES, SECRETS
from agents.kube.transport import HttpTransport
from agents.runtime.cache import Cache
from agents.runtime.cluster import Cluster
from agents.runtime.controller import Environment
from agents.runtime.metrics import Metrics
from agents.runtime.source import ChannelSource
from nodeagent.config import NodeAgentConfiguration
from nodeagent.controllers import lease, systemdunitcheck
from nodeagent.controllers.operatingsystemconfig.build import NAMESPACE, OperatingSystemConfigController, Parts
from nodeagent.credentials import CredentialsManager
from nodeagent.host.kubelet import Kubelet
from nodeagent.host.node_identity import NodeIdentity, hostname_selector
from nodeagent.host.restart_budget import RestartBudget
from nodeagent.host.units_in_use import UnitsInUse
from nodeagent.paths import Paths
from nodeagent.status import StatusBoard
from osc.journal import Journal
from systemd.manager import SystemdUnitManager
from tests.bench.scale import SECRET_NAME, node_name
from tests.support.fake_systemd import FakeSystemd
from tests.support.osc_agent import FakeContainerd, FakeImages


async def _renewed() -> None:
    """Take the news."""


async def agent(number: int, access: ClusterAccess, folder: Path) -> None:
    """Run one agent: OSC, heartbeat and unit check."""
    root, name = folder / node_name(number), node_name(number)
    root.mkdir(parents=True)
    host, clock, rng, paths = FakeSystemd(root), SystemClock(), Random(number), Paths(root=root)
    await host.start()
    transport = HttpTransport(access, user_agent="gardener-node-agent/bench", clock=clock)
    client = Client(transport=transport, rng=rng)
    cache = Cache(client=client, clock=clock, rng=rng)
    secrets = cache.informer(SECRETS, namespace=NAMESPACE, field_selector=f"metadata.name={SECRET_NAME}")
    nodes = cache.informer(NODES, label_selector=hostname_selector(name).label)
    identity = NodeIdentity(hostname=name, nodes=nodes, ambiguous=lambda _nodes: None)
    recorder = EventRecorder(client=client, instance=name, clock=clock)
    units, config = SystemdUnitManager(address=host.address), configuration()
    journal = new_journal(paths, clock)
    osc = OperatingSystemConfigController(
        Parts(
            config=config,
            paths=paths,
            clock=clock,
            server_clock=clock,
            client=client,
            recorder=recorder,
            secrets=secrets,
            nodes=nodes,
            identity=identity,
            credentials=cast("CredentialsManager", None),  # never renewed here
            journal=journal,
            units=units,
            in_use=UnitsInUse(),
            budget=RestartBudget(path=paths.restarts, clock=clock, boot_id="bench"),
            containerd=FakeContainerd(),
            kubelet=Kubelet(),
            images=FakeImages(root),
            status=StatusBoard(path=paths.status, clock=clock, version="bench"),
            search_path="",
            shutdown=Shutdown(),
            token_resync=ChannelSource(),
            tokens={},
        )
    )

    identity.start()
    heartbeat = lease.new_controller(client=client, nodes=nodes, identity=identity, clock=clock, renewed=_renewed)
    check = systemdunitcheck.new_controller(
        client=client,
        nodes=nodes,
        identity=identity,
        units=units,
        clock=clock,
        last_applied=paths.last_applied,
        config=config.controllers.systemd_unit_check,
    )
    environment = Environment(clock=clock, rng=rng, metrics=Metrics())
    async with asyncio.TaskGroup() as group:
        group.create_task(Cluster(name="shoot", client=client, cache=cache, recorder=recorder).run())
        for controller in (*osc.controllers(), heartbeat, check):
            group.create_task(controller.run(environment))


def new_journal(paths: Paths, clock: Clock) -> Journal:
    """Return one agent's journal."""
    return Journal(
        pending_path=paths.pending_changes,
        last_applied_path=paths.last_applied,
        generations=Generations(paths.generations),
        clock=clock,
    )


def configuration() -> NodeAgentConfiguration:
    """Return what all agents share."""
    return NodeAgentConfiguration.model_validate(
        {
            "apiVersion": "nodeagent.config.gardener.cloud/v1alpha1",
            "kind": "NodeAgentConfiguration",
            "apiServer": {"server": "https://unused"},
            "controllers": {"operatingSystemConfig": {"secretName": SECRET_NAME, "kubernetesVersion": "1.34.4"}},
        }
    )


async def run(first: int, count: int, path: Path, folder: Path) -> None:
    """Run agents until SIGTERM."""
    access = await kubeconfig.load(path)
    if access is None:
        raise SystemExit(f"no kubeconfig at {path}")
    loop, main = asyncio.get_running_loop(), asyncio.current_task()
    if main is not None:
        loop.add_signal_handler(signal.SIGTERM, main.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.TaskGroup() as group:
            for number in range(first, first + count):
                group.create_task(agent(number, access, folder))


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    asyncio.run(run(options.first, options.count, options.kubeconfig, options.folder))


if __name__ == "__main__":
    main()
