"""Builds the controllers that look after our Node and the machine's runtime; `app.py` runs them.

Source: gardener pkg/nodeagent/controller/add.go (contract 7.2, 7.5 to 7.8). All of them may start before our Node is known:
each begins when it appears.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agents.core.clock import Clock
from agents.core.generations import Generations
from agents.core.shutdown import Shutdown
from agents.kube.client import Client
from agents.kube.events import EventRecorder
from agents.kube.models import Node
from agents.runtime.cache import Informer
from agents.runtime.controller import Controller
from nodeagent.config import NodeAgentConfiguration
from nodeagent.controllers import hostnamecheck, node, secretnamechange, systemdunitcheck
from nodeagent.controllers.healthcheck import controller as healthcheck
from nodeagent.controllers.healthcheck.remedy import CONTROLLER as HEALTH_CHECK
from nodeagent.host.addresses import interface_addresses
from nodeagent.host.containerd import Containerd
from nodeagent.host.disk_space import full
from nodeagent.host.hostname import read_hostname
from nodeagent.host.kubelet import Kubelet
from nodeagent.host.node_events import NodeEvents
from nodeagent.host.node_identity import NodeIdentity
from nodeagent.host.restart_budget import RestartBudget
from nodeagent.host.units_in_use import UnitsInUse
from nodeagent.paths import Paths
from systemd.manager import UnitManager


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """What these controllers share with the rest of the process.

    Attributes:
        config: this process's configuration.
        config_path: the file that it was read from.
        client: the API server.
        recorder: for events.
        nodes: Nodes.
        identity: which of them is ours.
        units: systemd.
        in_use: who acts on which unit.
        containerd: the container runtime.
        kubelet: the kubelet.
        shutdown: ends the process.
        restart_self: restarts it, where that is not done by restarting its unit.
        clock: time.
        paths: of this machine.
    """

    config: NodeAgentConfiguration
    config_path: Path
    client: Client
    recorder: EventRecorder
    nodes: Informer[Node]
    identity: NodeIdentity
    units: UnitManager
    in_use: UnitsInUse
    budget: RestartBudget
    containerd: Containerd
    kubelet: Kubelet
    shutdown: Shutdown
    restart_self: Callable[[], None] | None
    clock: Clock
    paths: Paths


def new_controllers(parts: NodeParts) -> list[Controller]:
    """Build node, secret-name-change, health-check, systemd-unit-check and hostname-check."""
    return [
        node.new_controller(
            client=parts.client,
            nodes=parts.nodes,
            identity=parts.identity,
            units=parts.units,
            in_use=parts.in_use,
            events=_events(parts, node.CONTROLLER),
            state=parts.paths.requested_restarts,
            restart_self=parts.restart_self,
        ),
        secretnamechange.new_controller(
            client=parts.client,
            nodes=parts.nodes,
            identity=parts.identity,
            events=_events(parts, secretnamechange.CONTROLLER),
            shutdown=parts.shutdown,
            budget=parts.budget,
            config_path=parts.config_path,
            generations=Generations(parts.paths.generations),
            running_with=parts.config.controllers.operating_system_config.secret_name,
        ),
        healthcheck.new_controller(_health_checks(parts)),
        systemdunitcheck.new_controller(
            client=parts.client,
            nodes=parts.nodes,
            identity=parts.identity,
            units=parts.units,
            clock=parts.clock,
            last_applied=parts.paths.last_applied,
            config=parts.config.controllers.systemd_unit_check,
        ),
        hostnamecheck.new_controller(
            hostname=parts.identity.hostname,
            read=read_hostname,
            events=_events(parts, hostnamecheck.CONTROLLER),
            shutdown=parts.shutdown,
        ),
    ]


def _health_checks(parts: NodeParts) -> healthcheck.Dependencies:
    return healthcheck.Dependencies(
        client=parts.client,
        nodes=parts.nodes,
        identity=parts.identity,
        units=parts.units,
        in_use=parts.in_use,
        budget=parts.budget,
        events=_events(parts, HEALTH_CHECK),
        clock=parts.clock,
        containerd_version=parts.containerd.version,
        kubelet_healthy=parts.kubelet.healthy,
        addresses=interface_addresses,
        full_disk=partial(full, parts.paths.runtime_disks),
    )


def _events(parts: NodeParts, controller: str) -> NodeEvents:
    return NodeEvents(recorder=parts.recorder, node=lambda: parts.identity.node, controller=controller)
