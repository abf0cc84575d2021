"""Follow the Node's label that names the OSC Secret: write it into the configuration file, and end the process.

The label decides which Secret we may read, and a process that waits for a Secret it may not read does not even see that the
label was put right. So a name is taken over only when the Secret is there and can be read; an empty one never (contract 9, W6).
Source: gardener pkg/nodeagent/controller/secretnamechange/reconciler.go (contract 7.7).
"""

import asyncio
import re
from datetime import timedelta
from pathlib import Path

from agents.core.config import ConfigError
from agents.core.errors import RetriableError
from agents.core.generations import Keeper
from agents.core.logging import get_logger
from agents.core.shutdown import Shutdown
from agents.kube.client import Client
from agents.kube.errors import Forbidden, NotFound
from agents.kube.models import SECRETS, KubeObject, Node
from agents.runtime.cache import Informer
from agents.runtime.controller import Controller
from agents.runtime.predicate import any_of, label_changed
from agents.runtime.reconcile import Persistent, Request, Result
from nodeagent import config_file
from nodeagent.host.node_events import NodeEvents
from nodeagent.host.node_identity import NodeIdentity, OwnNodeSource
from nodeagent.host.restart_budget import RestartBudget
from osc.codec import effective_data

log = get_logger(__name__)

CONTROLLER = "secret-name-change"
LABEL = "worker.gardener.cloud/gardener-node-agent-secret-name"
NAMESPACE = "kube-system"
LOOK_AGAIN = timedelta(minutes=1)
BUDGET = "gardener-node-agent.service for another secret"
"""Own restarts are counted too: where the label and the OSC's own configuration file contradict each other, each would undo the other."""
_LONGEST_NAME = 253
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class ConfigurationUnusable(RetriableError):
    """The configuration file on the disk cannot be read or changed; the process goes on with what it has."""


def appears_with_label(old: KubeObject | None, new: KubeObject | None, /) -> bool:
    """Accept a Node that appears with the label, an empty one included."""
    return old is None and new is not None and LABEL in new.metadata.labels


class SecretNameReconciler:
    """Compares the label with the configuration file."""

    def __init__(
        self,
        *,
        client: Client,
        nodes: Informer[Node],
        events: NodeEvents,
        shutdown: Shutdown,
        budget: RestartBudget,
        config_path: Path,
        generations: Keeper,
        running_with: str,
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._events = events
        self._shutdown = shutdown
        self._budget = budget
        self._config_path = config_path
        self._generations = generations
        self._running_with = running_with
        self._said = ""

    async def reconcile(self, request: Request) -> Result:
        """Take over a name that is new and usable, and end the process for it."""
        node = self._nodes.get(request)
        if node is None:
            return Result()
        name = node.metadata.labels.get(LABEL, "")
        if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
            what = f"label {LABEL} is {'no name of a Secret' if name else 'empty or gone'}"
            self._say(f"{what}; {self._running_with} stays in use")
            return Result()
        on_disk = await self._read()
        if name == on_disk == self._running_with:
            self._said = ""
            return Result()
        if not await self._readable(name):
            self._say(
                f"secret {name} is not there or must not be read; {self._running_with} stays in use until it can be"
            )
            return Result(requeue_after=LOOK_AGAIN)
        if wait := self._budget.wait(BUDGET):
            self._say(f"the name changes too often, or something writes the old one back; {name} is taken over later")
            return Result(requeue_after=wait)
        await asyncio.to_thread(self._budget.spend, BUDGET)
        if name != on_disk:
            await self._write(name)
            log.info("Configuration written", path=str(self._config_path), secret=name, before=on_disk)
        self._shutdown.request("name of the OSC secret changed")
        return Result()

    async def _read(self) -> str:
        try:
            return await asyncio.to_thread(config_file.secret_name, self._config_path, self._generations)
        except ConfigError as error:
            raise self._unusable(error) from error

    async def _write(self, name: str) -> None:
        try:
            await asyncio.to_thread(config_file.write_secret_name, self._config_path, name, self._generations)
        except ConfigError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: ConfigError) -> ConfigurationUnusable:
        return ConfigurationUnusable(
            "configuration file is not usable", path=str(self._config_path), problems=error.problems
        )

    async def _readable(self, name: str) -> bool:
        """Look whether the Secret is there, and may be read; an authorizer that is away looks the same, so we look again."""
        try:
            secret = await self._client.get(SECRETS, name, namespace=NAMESPACE)
        except (NotFound, Forbidden):
            return False
        return effective_data(secret.data) is not None

    def _say(self, what: str) -> None:
        """Say something once, until it is over or something else is to be said."""
        if what != self._said:
            self._said = what
            log.error("Name of the OSC secret not taken over", reason=what)
            self._events.event("Warning", reason="SecretNameIgnored", action="SecretNameChange", note=what)


def new_controller(
    *,
    client: Client,
    nodes: Informer[Node],
    identity: NodeIdentity,
    events: NodeEvents,
    shutdown: Shutdown,
    budget: RestartBudget,
    config_path: Path,
    generations: Keeper,
    running_with: str,
) -> Controller:
    """Build the controller.

    Args:
        client: the API server.
        nodes: Nodes.
        identity: which Node is ours.
        events: where what is ignored is said.
        shutdown: ends the process.
        budget: of our own restarts.
        config_path: the file that this process has read.
        generations: keeps that file.
        running_with: name of the OSC Secret that this process uses.
    """
    reconciler = SecretNameReconciler(
        client=client,
        nodes=nodes,
        events=events,
        shutdown=shutdown,
        budget=budget,
        config_path=config_path,
        generations=generations,
        running_with=running_with,
    )
    changed = any_of(appears_with_label, _changed_later)
    return Controller(
        name=CONTROLLER, reconciler=Persistent(reconciler), sources=[OwnNodeSource(identity, predicate=changed)]
    )


def _changed_later(old: KubeObject | None, new: KubeObject | None, /) -> bool:
    return old is not None and label_changed(LABEL)(old, new)
