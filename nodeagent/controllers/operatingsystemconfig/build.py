"""Build the OSC controller: the only module here that knows all the others."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.core.clock import Clock
from agents.core.shutdown import Shutdown
from agents.kube.client import Client
from agents.kube.events import EventRecorder
from agents.kube.models import Node, Secret
from agents.runtime.cache import Informer
from agents.runtime.controller import Controller
from agents.runtime.predicate import all_of, created, label_is
from agents.runtime.reconcile import Persistent, Request
from agents.runtime.source import ChannelSource, KindSource, Source
from nodeagent.config import NodeAgentConfiguration
from nodeagent.controllers.operatingsystemconfig import serial
from nodeagent.controllers.operatingsystemconfig.apply import Applier
from nodeagent.controllers.operatingsystemconfig.apply_pass import Outcome
from nodeagent.controllers.operatingsystemconfig.containerd import Containerd, ContainerdFiles
from nodeagent.controllers.operatingsystemconfig.controller import (
    DEADLINE,
    Dependencies,
    OperatingSystemConfigReconciler,
)
from nodeagent.controllers.operatingsystemconfig.drift import Drift
from nodeagent.controllers.operatingsystemconfig.inplace import (
    Host,
    InPlaceUpdate,
    RolledBack,
    UpdateGivenUp,
    WaitingForReboot,
    became_ready,
)
from nodeagent.controllers.operatingsystemconfig.kubelet_credentials import KubeletCredentials
from nodeagent.controllers.operatingsystemconfig.reporter import CONTROLLER
from nodeagent.controllers.operatingsystemconfig.serial import SerialLock
from nodeagent.controllers.operatingsystemconfig.trigger import JitterDelay, content_changed, to_secret
from nodeagent.controllers.operatingsystemconfig.units import UnitJobs
from nodeagent.credentials import CredentialsManager
from nodeagent.host.extracted_files import ExtractedFiles, RememberingExtractor
from nodeagent.host.file_watch import FileWatch
from nodeagent.host.image_extractor import ImageExtractor
from nodeagent.host.kubelet import Kubelet
from nodeagent.host.node_events import NodeEvents
from nodeagent.host.node_identity import HOSTNAME_LABEL, NodeIdentity
from nodeagent.host.originals import Originals
from nodeagent.host.restart_budget import RestartBudget
from nodeagent.host.units_in_use import UnitsInUse
from nodeagent.paths import Paths
from nodeagent.status import StatusBoard
from osc.errors import InvalidOSC
from osc.journal import Journal
from systemd.manager import UnitManager

NAMESPACE = "kube-system"
KUBELET_UNIT = "kubelet.service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the OSC controller is built from."""

    config: NodeAgentConfiguration
    paths: Paths
    clock: Clock
    server_clock: Clock
    """For what other machines read and compare with theirs."""
    client: Client
    recorder: EventRecorder
    secrets: Informer[Secret]
    nodes: Informer[Node]
    identity: NodeIdentity
    credentials: CredentialsManager
    journal: Journal
    units: UnitManager
    in_use: UnitsInUse
    budget: RestartBudget
    containerd: Containerd
    kubelet: Kubelet
    images: ImageExtractor
    status: StatusBoard
    applied: Callable[[Outcome, float], None] = lambda _outcome, _seconds: None
    """Told what became of each plan, and how long that took."""
    release_memory: Callable[[], None] = lambda: None
    """Told when work has ended that took much memory."""
    shutdown: Shutdown
    search_path: str
    """PATH for containerd's drop-in."""
    token_resync: ChannelSource
    """Told about Secrets whose token files are to be looked at."""
    tokens: Mapping[Path, Request]
    """The Secret of each token file."""


class OperatingSystemConfigController:
    """The reconciler with everything below it, and its controllers."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.lock = SerialLock(client=parts.client, holder=parts.identity.hostname, clock=parts.server_clock)
        events = NodeEvents(recorder=parts.recorder, node=lambda: parts.identity.node, controller=CONTROLLER)
        self._events = events
        self.jobs = UnitJobs(
            units=parts.units,
            clock=parts.clock,
            notify=events.unit_processed,
            record=parts.paths.unit_jobs,
            in_use=parts.in_use,
        )
        self.originals = Originals(folder=parts.paths.originals, root=parts.paths.root)
        self.containerd = ContainerdFiles(containerd=parts.containerd, originals=self.originals, root=parts.paths.root)
        settings = parts.config.controllers.operating_system_config
        self.extracted = ExtractedFiles(record=parts.paths.extracted, root=parts.paths.root)
        self.drift = Drift(
            repair=settings.drift.mode == "repair",
            units=parts.units,
            containerd=self.containerd,
            extracted=self.extracted,
            secret_digests=lambda: parts.journal.load().secret_digests,
            report=lambda finding, action: events.event(
                "Warning", reason=finding.reason, action="Drift", note=f"{finding.message}; {action}"
            ),
            clock=parts.clock,
            budget=parts.budget,
            root=parts.paths.root,
        )
        request = Request(NAMESPACE, settings.secret_name)
        self.file_watch = FileWatch(request=request, touched=self.drift.suspect, root=parts.paths.root)
        self.reconciler = OperatingSystemConfigReconciler(
            Dependencies(
                secrets=parts.secrets,
                identity=parts.identity,
                client=parts.client,
                recorder=parts.recorder,
                journal=parts.journal,
                applier=self._new_applier(),
                jobs=self.jobs,
                originals=self.originals,
                containerd=self.containerd,
                drift=self.drift,
                watch=self.file_watch.watch,
                in_place=self._new_in_place(),
                lock=self.lock,
                status=parts.status,
                shutdown=parts.shutdown,
                clock=parts.clock,
                paths=parts.paths,
                search_path=parts.search_path,
                sync_period=settings.sync_period,
                kubernetes_version=settings.kubernetes_version,
                applied=parts.applied,
                release_memory=parts.release_memory,
            )
        )

    def controllers(self) -> list[Controller]:
        """Return the controllers of the OSC and of the lock that a serial pool shares."""
        secret_name = self._parts.config.controllers.operating_system_config.secret_name
        return [
            new_controller(
                reconciler=self.reconciler,
                secrets=self._parts.secrets,
                nodes=self._parts.nodes,
                identity=self._parts.identity,
                secret_name=secret_name,
                more=[self.file_watch],
            ),
            serial.new_controller(self.lock),
        ]

    def _new_applier(self) -> Applier:
        parts, loop = self._parts, asyncio.get_running_loop()

        def file_removed(path: str) -> None:
            if (request := parts.tokens.get(Path(path))) is not None:
                loop.call_soon_threadsafe(parts.token_resync.send, request)

        return Applier(
            unit_manager=parts.units,
            jobs=self.jobs,
            journal=parts.journal,
            containerd=self.containerd,
            images=RememberingExtractor(
                images=parts.images,
                extracted=self.extracted,
                moved=lambda tag: self._events.event(
                    "Warning", reason="ImageTagMoved", action="Extract", note=tag.note
                ),
            ),
            originals=self.originals,
            file_removed=file_removed,
            check=self.lock.check,
            clock=parts.clock,
            root=parts.paths.root,
        )

    def _new_in_place(self) -> InPlaceUpdate:
        parts = self._parts
        api_server = parts.config.api_server

        def resync_tokens() -> None:
            for request in dict.fromkeys(parts.tokens.values()):
                parts.token_resync.send(request)

        async def renew_certificate() -> None:
            await parts.credentials.renew(parts.client)

        async def restart_kubelet() -> None:
            await self.jobs.restart(KUBELET_UNIT)

        credentials = KubeletCredentials(paths=parts.paths, server=api_server.server, ca_file=api_server.ca_file)
        host = Host(
            kubelet_healthy=parts.kubelet.healthy,
            restart_kubelet=restart_kubelet,
            renew_certificate=renew_certificate,
            resync_tokens=resync_tokens,
            kubelet_credentials=credentials,
            os_release=parts.paths.os_release,
            state=parts.paths.operating_system_update,
            failed=lambda reason: self._events.event(
                "Warning", reason="InPlaceUpdateFailed", action="Update", note=reason
            ),
        )
        update = InPlaceUpdate(client=parts.client, journal=parts.journal, clock=parts.clock, host=host)
        parts.in_use.also_used(CONTROLLER, lambda unit: unit == KUBELET_UNIT and update.waits_for_kubelet)
        return update


def new_controller(
    *,
    reconciler: OperatingSystemConfigReconciler,
    secrets: Informer[Secret],
    nodes: Informer[Node],
    identity: NodeIdentity,
    secret_name: str,
    more: Sequence[Source] = (),
) -> Controller:
    """Build the controller.

    Its sources: the Secret, and our Node when it appears (what was applied is reported then) or is ready
    for an update in place; and `more`, which queue the Secret's key.
    """
    delay = JitterDelay(node_name=lambda: identity.name, node=lambda: identity.node)
    sources: list[Source] = [
        KindSource(secrets, predicate=content_changed, delay=delay),
        KindSource(
            nodes,
            predicate=all_of(became_ready, label_is(HOSTNAME_LABEL, identity.hostname)),
            mapper=to_secret(NAMESPACE, secret_name),
        ),
        KindSource(
            nodes,
            predicate=all_of(created, label_is(HOSTNAME_LABEL, identity.hostname)),
            mapper=to_secret(NAMESPACE, secret_name),
        ),
    ]
    sources += more
    return Controller(
        name=CONTROLLER,
        reconciler=Persistent(reconciler, final=(InvalidOSC, RolledBack, UpdateGivenUp, WaitingForReboot)),
        sources=sources,
        deadline=DEADLINE,
    )
