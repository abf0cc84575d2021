"""A node whose OSC is kept up beside another one: a file out of a Secret, a unit that starts slowly, the agent's own unit."""

import asyncio
import json

import pytest

from tests.support.in_place import KUBELET, run_os
from tests.support.osc_agent import SLEEP, OscAgent, from_secret, inline

SLOW = """[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c "until [ -e /run/gate-g ]; do sleep 0.05; done; exit 0"
"""
FILES = [
    from_secret("/etc/s", "s"),
    inline("/etc/motd", "old", 0o644),
    inline("/etc/slow", "slow", 0o644),
    inline("/etc/own", "own", 0o644),
]
UNITS = [
    {"name": "kubelet.service", "content": SLEEP, "filePaths": [KUBELET]},
    {"name": "slow.service", "content": SLOW, "filePaths": ["/etc/slow"]},
    {"name": "gardener-node-agent.service", "content": SLEEP, "filePaths": ["/etc/own"]},
]
WANTED = {"operatingSystemVersion": "1.0.0", "kubelet": "1.34.1"}


def publish(node: OscAgent, *, serial: bool = False, **kubelet: object) -> str:
    """Publish an OSC for updates in place."""
    return node.publish(
        files=[inline(KUBELET, json.dumps(kubelet)), *FILES], units=UNITS, inPlaceUpdates=WANTED, serial=serial
    )


async def begin(node: OscAgent, *, serial: bool = False) -> str:
    """Have a first OSC applied to its end; returns its checksum."""
    run_os(node, "1.0.0")
    node.put_secret("s", "key", "x")
    checksum = publish(node, serial=serial)
    await node.host.open_gate("g")
    async with node.connected():
        await node.reconcile()
    node.start_process()
    node.identity.start()
    async with node.connected():
        await node.reconcile()
    node.host.unit("gardener-node-agent.service").set_state("active", "running")
    node.host.jobs.clear()
    assert node.applied() == checksum
    return checksum


async def die(*_arguments: object, **_more: object) -> None:
    """Be killed."""
    raise asyncio.CancelledError


async def be_killed_in_a_repair(node: OscAgent) -> None:
    """Have the first OSC applied and another one wait; `/etc/motd` drifts, and the agent is killed once that is in its journal."""
    await begin(node)
    publish(node, cpuManagerPolicy="static")
    async with node.connected():
        await node.reconcile()
        (node.root / "etc/motd").write_text("wrong")
        node.drift.suspect("/etc/motd")
        node.applier.apply = die  # type: ignore[assignment,method-assign]
        with pytest.raises(asyncio.CancelledError):
            await node.reconcile()


def start_again(node: OscAgent) -> None:
    """Let systemd start the agent."""
    node.start_process()
    node.host.unit("gardener-node-agent.service").set_state("active", "running")
