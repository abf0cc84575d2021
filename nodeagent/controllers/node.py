"""Restart the units that a user lists in an annotation of the Node, each once.

What was begun is written down before it is done, so that neither an API server that refuses to take the annotation away nor
a restart of the agent makes us restart a unit twice for one request. Our own unit comes last, after the annotation is gone.
Only the value that was served is taken away: what a user asks for meanwhile is a request of its own.
Source: gardener pkg/nodeagent/controller/node/reconciler.go (contract 7.2).
"""

import asyncio
import hashlib
from collections.abc import Callable, Collection
from pathlib import Path

from agents.core import files
from agents.core.errors import AgentError
from agents.core.logging import get_logger
from agents.core.yamlio import dump_json, load_yaml
from agents.kube.client import Client
from agents.kube.errors import DeadlineExceeded, InvalidResponse, NotFound, ServerError, Unavailable
from agents.kube.models import NODES, Node
from agents.kube.patch import merge
from agents.runtime.cache import Informer
from agents.runtime.controller import Controller
from agents.runtime.predicate import annotation_changed, any_of, created
from agents.runtime.reconcile import Persistent, Request, Result
from nodeagent.host.node_events import NodeEvents
from nodeagent.host.node_identity import NodeIdentity, OwnNodeSource
from nodeagent.host.units_in_use import UnitsInUse
from systemd.jobs import JobOutcome
from systemd.manager import UnitManager
from systemd.units import SUFFIXES

log = get_logger(__name__)

CONTROLLER = "node"
ANNOTATION = "worker.gardener.cloud/restart-systemd-services"
OWN_UNIT = "gardener-node-agent.service"
MOST_UNITS = 100
"""Of one request; what it lists beyond that is named in an event and left alone."""
STATE_MODE = 0o600
_PERHAPS_DONE = (DeadlineExceeded, InvalidResponse, ServerError, Unavailable)
"""Errors that do not tell whether the API server has made a change; a 504 comes from a proxy that gave up."""


def units_of(value: str) -> list[str]:
    """Return the units that an annotation lists, each once, in its order; a name without a unit's suffix is a service."""
    names = (name.strip() for name in value.split(","))
    return list(dict.fromkeys(name if _has_suffix(name) else f"{name}.service" for name in names if name))


def _has_suffix(name: str) -> bool:
    return any(name.endswith(suffix) for suffix in SUFFIXES)


class RequestedRestarts:
    """Which units were restarted for the annotation that is on the Node; survives a restart of the agent.

    Args:
        path: where it is kept, below /run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._request, self._begun = _read(path)

    def begun(self, request: str) -> Collection[str]:
        """Return the units whose restart was begun for this request."""
        return tuple(self._begun) if request == self._request else ()

    def begin(self, request: str, unit: str) -> None:
        """Note a restart that is about to be made."""
        self._begun = [*self.begun(request), unit]
        self._request = request
        self._write()

    def forget(self) -> None:
        """Note that no request is open."""
        if self._request:
            self._request, self._begun = "", []
            self._write()

    def _write(self) -> None:
        document = {"request": self._request, "begun": self._begun}
        try:
            files.write_atomic(self._path, dump_json(document), mode=STATE_MODE, sync=False)
        except files.FileError as error:
            log.error("Requested restarts not written down", error=error)


def _read(path: Path) -> tuple[str, list[str]]:
    try:
        document = load_yaml(files.read_optional(path) or b"{}")
    except AgentError as error:
        log.error("Requested restarts unreadable", path=str(path), error=error)
        return "", []
    request, begun = (document.get("request"), document.get("begun")) if isinstance(document, dict) else ("", [])
    if not isinstance(request, str) or not isinstance(begun, list):
        return "", []
    return request, [unit for unit in begun if isinstance(unit, str)]


class NodeReconciler:
    """Serves the annotation of one Node."""

    def __init__(
        self,
        *,
        client: Client,
        nodes: Informer[Node],
        units: UnitManager,
        in_use: UnitsInUse,
        events: NodeEvents,
        requested: RequestedRestarts,
        restart_self: Callable[[], None] | None,
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._units = units
        self._in_use = in_use
        self._events = events
        self._requested = requested
        self._restart_self = restart_self
        self._own_asked = False
        self._served = ""
        """Version of the Node from which the annotation was taken away."""

    async def reconcile(self, request: Request) -> Result:
        """Restart what is listed and was not restarted yet, take the annotation away, restart ourselves if listed."""
        node = self._nodes.get(request)
        value = "" if node is None else node.metadata.annotations.get(ANNOTATION, "")
        if node is None or not value:
            await asyncio.to_thread(self._requested.forget)
            await self._serve_own()
            return Result()
        if node.metadata.resource_version == self._served:
            return Result()  # as it was before we took the annotation away; what it became is on its way
        # Another Node object of the same name may ask for the same; a digest, because a request may be long.
        key = hashlib.sha256(f"{node.metadata.uid}/{value}".encode()).hexdigest()
        listed = units_of(value)
        if len(listed) > MOST_UNITS:
            self._refuse(len(listed))
        units = listed[:MOST_UNITS]
        for unit in units:
            if unit != OWN_UNIT and unit not in self._requested.begun(key):
                await asyncio.to_thread(self._requested.begin, key, unit)
                await self._restart(unit)
        if not await self._take_away(request, value, own=OWN_UNIT in units):
            return Result()
        log.info("Annotation removed", annotation=ANNOTATION)
        await asyncio.to_thread(self._requested.forget)
        await self._serve_own()
        return Result()

    async def _take_away(self, request: Request, value: str, *, own: bool) -> bool:
        """Remove the annotation as it was served; returns False if it has become another one, which is on the queue then.

        Raises:
            Conflict: the Node has changed, perhaps to another request.
        """
        node = self._nodes.get(request)
        if node is not None and node.metadata.annotations.get(ANNOTATION) != value:
            return False
        if node is not None:
            metadata = {"resourceVersion": node.metadata.resource_version, "annotations": {ANNOTATION: None}}
            try:
                await self._client.patch(NODES, node.metadata.name, merge({"metadata": metadata}))
            except NotFound:
                log.debug("Node is gone", node=node.metadata.name)
            except (*_PERHAPS_DONE, asyncio.CancelledError):
                self._own_asked |= own  # it may be gone: then nothing else tells of this request
                raise
            self._served = node.metadata.resource_version
        self._own_asked |= own
        return True

    async def _serve_own(self) -> None:
        """Restart ourselves if that was asked for; what asked is gone."""
        if not self._own_asked:
            return
        self._own_asked = False
        await self._events.flush()
        if self._restart_self is None:
            await self._restart(OWN_UNIT)
        else:
            self._restart_self()

    async def _restart(self, unit: str) -> None:
        """Restart a unit; a failure is said and not returned, or it would be tried again and again."""
        log.info("Restarting unit", unit=unit)
        try:
            with self._in_use.using(unit, by=CONTROLLER):
                report = await self._units.restart(unit)
        except AgentError as error:
            log.error("Unit not restarted", unit=unit[:256], error=error)
            self._events.unit_processed("restart", unit[:256], str(error))
            return
        cause = None
        if report.outcome not in (JobOutcome.DONE, JobOutcome.PENDING):
            cause = f"{report.outcome.value}: {report.reason}" if report.reason else report.outcome.value
            log.error("Unit not restarted", unit=unit, result=cause)
        self._events.unit_processed("restart", unit, cause)

    def _refuse(self, count: int) -> None:
        log.error("Too many units to restart", annotation=ANNOTATION, units=count, served=MOST_UNITS)
        self._events.event(
            "Warning",
            reason="TooManyUnits",
            action="restart",
            note=f"annotation {ANNOTATION} lists {count} units; only the first {MOST_UNITS} are restarted",
        )


def new_controller(
    *,
    client: Client,
    nodes: Informer[Node],
    identity: NodeIdentity,
    units: UnitManager,
    in_use: UnitsInUse,
    events: NodeEvents,
    state: Path,
    restart_self: Callable[[], None] | None = None,
) -> Controller:
    """Build the controller.

    Args:
        client: the API server.
        nodes: Nodes.
        identity: which of them is ours.
        units: systemd.
        in_use: told which units are being restarted.
        events: about what was done.
        state: the file that remembers what was restarted.
        restart_self: instead of a restart of our own unit, where this process is not the unit's.
    """
    reconciler = NodeReconciler(
        client=client,
        nodes=nodes,
        units=units,
        in_use=in_use,
        events=events,
        requested=RequestedRestarts(state),
        restart_self=restart_self,
    )
    changed = any_of(created, annotation_changed(ANNOTATION))
    return Controller(
        name=CONTROLLER, reconciler=Persistent(reconciler), sources=[OwnNodeSource(identity, predicate=changed)]
    )
