"""Builds every object of the process that runs the controllers; the only place that knows all classes, and the start order.

Source: gardener cmd/gardener-node-agent/app/app.go (contract 1.4); architecture, section 3.
"""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random, SystemRandom

from agents.core.clock import Clock, SystemClock
from agents.core.generations import Generations
from agents.core.memory import MemoryRelease
from agents.core.shutdown import Shutdown
from agents.kube.events import EventRecorder
from agents.kube.models import NODES, SECRETS, Node, Secret
from agents.kube.server_clock import ServerClock
from agents.runtime.cache import Cache, Informer
from agents.runtime.cluster import Cluster
from agents.runtime.controller import Environment
from agents.runtime.health import Checks, InformerSync
from agents.runtime.manager import STOP_DEADLINE, Manager, to_console
from agents.runtime.metrics import Metrics
from agents.runtime.server import health_server, metrics_server
from agents.runtime.source import ChannelSource
from nodeagent import status
from nodeagent.config import NodeAgentConfiguration
from nodeagent.config_history import Note
from nodeagent.controllers import certificate, lease, token, watchdog
from nodeagent.controllers.operatingsystemconfig.build import OperatingSystemConfigController, Parts
from nodeagent.controllers.operatingsystemconfig.controller import OperatingSystemConfigReconciler
from nodeagent.credentials import ClientFactory, CredentialsManager
from nodeagent.host.clock_report import ClockReport
from nodeagent.host.consistency import Finding
from nodeagent.host.containerd import Containerd
from nodeagent.host.ctr import Ctr, CtrSettings
from nodeagent.host.hostname import read_hostname
from nodeagent.host.image_extractor import CtrImageExtractor
from nodeagent.host.kubelet import Kubelet
from nodeagent.host.machine_name import read_machine_name
from nodeagent.host.node_events import NodeEvents, reference
from nodeagent.host.node_identity import NodeIdentity, hostname_selector
from nodeagent.host.restart_budget import RestartBudget, read_boot_id
from nodeagent.host.units_in_use import UnitsInUse
from nodeagent.metrics import NodeAgentMetrics
from nodeagent.node_controllers import NodeParts, new_controllers
from nodeagent.paths import Paths
from nodeagent.startup.failed_start import FailedStart
from nodeagent.startup.file_consistency import FileConsistency
from nodeagent.startup.kubelet_bootstrap_kubeconfig import KubeletBootstrapKubeconfig
from nodeagent.startup.stale_files import StaleFiles
from nodeagent.version import GARDENER_VERSION
from osc.journal import Journal
from systemd.manager import SystemdUnitManager
from systemd.notify import Notifier, ServiceEnvironment

NAMESPACE = "kube-system"


@dataclass(frozen=True, slots=True)
class Owner:
    """Somebody other than systemd who runs these controllers.

    Attributes:
        shutdown: by which the owner ends them.
        say: told why they ended by themselves, in a line for people.
        abort: called with an exit code when they do not end in time; must not return.
    """

    shutdown: Shutdown
    say: Callable[[str], None]
    abort: Callable[[int], None]


async def run(
    config: NodeAgentConfiguration,
    config_path: Path,
    *,
    notes: Sequence[Note] = (),
    ctr: CtrSettings,
    service: ServiceEnvironment,
    search_path: str,
    owner: Owner | None = None,
) -> int:
    """Run the controllers until something ends the process; returns the exit code.

    Args:
        config: validated.
        config_path: where it was read.
        notes: become events on the Node.
        ctr: how containerd is reached.
        service: what systemd handed over.
        search_path: PATH for containerd's drop-in.
        owner: who runs this, if that is not systemd.
    """
    return await _Process(config, config_path, notes, ctr, service, search_path, owner).run()


class _Process:
    """What lives as long as the process does."""

    def __init__(
        self,
        config: NodeAgentConfiguration,
        config_path: Path,
        notes: Sequence[Note],
        ctr: CtrSettings,
        service: ServiceEnvironment,
        search_path: str,
        owner: Owner | None,
    ) -> None:
        self._notes = notes
        self._config = config
        self._config_path = config_path
        self._service = service
        self._search_path = search_path
        self._notifier = Notifier(address=service.notify_socket)
        self._paths = Paths()
        self._clock: Clock = SystemClock()
        self._server_clock = ServerClock(clock=self._clock, name="shoot")
        self._rng: Random = SystemRandom()
        self._memory = MemoryRelease()
        self._owner = owner
        self._abort: Callable[[int], None] = os._exit if owner is None else owner.abort
        self._shutdown = Shutdown() if owner is None else owner.shutdown
        self._metrics = Metrics()
        self._sync = InformerSync(clock=self._clock)
        self._units = SystemdUnitManager()
        self._in_use = UnitsInUse()
        self._budget = RestartBudget(path=self._paths.restarts, clock=self._clock, boot_id=read_boot_id())
        self._journal = Journal(
            pending_path=self._paths.pending_changes,
            last_applied_path=self._paths.last_applied,
            generations=Generations(self._paths.generations),
            clock=self._clock,
        )
        self._status = status.StatusBoard(path=self._paths.status, clock=self._clock, version=GARDENER_VERSION)
        self._hostname = read_hostname()
        self._containerd = Containerd(ctr)
        self._kubelet = Kubelet()
        self._images = CtrImageExtractor(paths=self._paths, ctr=Ctr(ctr))
        self._clients = ClientFactory(clock=self._server_clock, rng=self._rng, observe=self._metrics.observe_request)
        self._credentials = CredentialsManager(
            config=config,
            paths=self._paths,
            machine_name=read_machine_name(self._paths.machine_name),
            clients=self._clients,
            clock=self._server_clock,
        )
        self._last_heartbeat: float | None = None
        self._last_try: float | None = None
        self._counts = NodeAgentMetrics(
            self._metrics, lease_age=self._heartbeat_age, restarts=lambda: self._budget.totals
        )
        self._failed_start = FailedStart(self._paths.failed_start)
        self._complete = False
        self._manager = self._new_manager()
        self._cluster: _ShootCluster | None = None

    async def run(self) -> int:
        try:
            code = await self._manager.run()
            if code and not self._complete:
                await self._failed_start.note()
            return code
        finally:
            self._notifier.stopping()
            _end_soon(self._abort)
            await self._credentials.close()
            await self._units.close()

    def _new_manager(self) -> Manager:
        checks, server = Checks(), self._config.server
        checks.add_liveness("informer-sync", self._sync.liveness)
        checks.add_readiness("informer-sync", self._sync.readiness)
        health_host, health_port = server.health_address
        metrics_host, metrics_port = server.metrics_address
        tokens = tuple(Path(sync.path) for sync in self._config.controllers.token.sync_configs)
        stale = StaleFiles(paths=self._paths, journal=self._journal, others=tokens)
        kubelet = KubeletBootstrapKubeconfig(paths=self._paths, api_server=self._config.api_server)
        return Manager(
            environment=Environment(clock=self._clock, rng=self._rng, metrics=self._metrics),
            shutdown=self._shutdown,
            informer_sync=self._sync,
            servers=[
                health_server(bind_address=health_host, port=health_port, checks=checks),
                metrics_server(bind_address=metrics_host, port=metrics_port, metrics=self._metrics),
            ],
            startup=[
                self._say_alive,
                stale.run,
                self._images.clean,
                self._connect,
                self._look_after_certificate,
                self._wait_synced,
                self._begin_early_heartbeat,
                kubelet.run,
                self._add_controllers,
                self._complete_start,
            ],
            abort=self._abort,
            say=to_console if self._owner is None else self._owner.say,
        )

    async def _say_alive(self) -> None:
        # Before anything is waited for: systemd would end an agent that waits for the API server longer than a start may take, or
        # than the watchdog waits, again and again.
        if (every := watchdog.period(self._service.watchdog_usec)) is not None:
            self._manager.add_controller(
                watchdog.new_controller(notifier=self._notifier, every=every, silence=self._heartbeat_silence),
                early=True,
            )
        self._notifier.ready()

    async def _connect(self) -> Cluster:
        access = await self._credentials.obtain()
        connection = self._config.client_connection
        limits = (connection.qps, connection.burst) if self._credentials.explicit else None
        client = self._clients.client(
            access, limits=limits, trust=self._credentials.trust, answered=self._credentials.in_use.answered
        )
        cache = Cache(client=client, clock=self._clock, rng=self._rng, opened=self._metrics.watch_opened)
        recorder = EventRecorder(client=client, instance=self._hostname, clock=self._server_clock)
        cluster = Cluster(name="shoot", client=client, cache=cache, recorder=recorder)
        self._cluster = _ShootCluster(cluster, self._hostname, self._config, self._server_clock)
        return cluster

    async def _look_after_certificate(self) -> None:
        # Before anything is waited for: what we start with may expire before the API server answers.
        if not self._credentials.explicit:
            self._manager.add_controller(
                certificate.new_controller(
                    credentials=self._credentials,
                    client=self._shoot.cluster.client,
                    clock=self._server_clock,
                    rng=self._rng,
                    events=self._speaker("certificate"),
                    expires=self._certificate_expires,
                ),
                early=True,
            )

    async def _wait_synced(self) -> None:
        # Not for the OSC's Secret: a label that names another one while we were away makes ours unreadable, and then the
        # heartbeat must go on, and the controller that follows the label must run. What needs the Secret waits for it itself.
        await self._shoot.nodes.wait_synced()
        self._shoot.identity.start()
        # Kept by the certificate's controller: a disk that is full, or takes nothing, must not keep the heartbeat from its start.
        self._credentials.works()

    async def _begin_early_heartbeat(self) -> None:
        # Before what looks at the disk and asks systemd: either may take longer than a Lease lasts.
        if not await self._failed_start.is_noted():
            self._begin_heartbeat()

    async def _complete_start(self) -> None:
        self._complete = True
        if await self._failed_start.is_noted():
            self._begin_heartbeat()
            await self._failed_start.forget()

    def _begin_heartbeat(self) -> None:
        shoot = self._shoot
        self._manager.add_controller(
            lease.new_controller(
                client=shoot.cluster.client,
                nodes=shoot.nodes,
                identity=shoot.identity,
                clock=self._server_clock,
                tried=self._heartbeat_tried,
                renewed=self._renewed,
                reconnect=shoot.cluster.cache.reconnect,
            ),
            early=True,
        )

    async def _add_controllers(self) -> None:
        resync = ChannelSource()
        operating_system_config = self._new_osc_controller(resync)
        self._counts.drift(lambda: operating_system_config.drift.totals)
        await self._check_consistency(operating_system_config.reconciler)
        self._shoot.identity.subscribe(self._say_notes)
        for controller in operating_system_config.controllers():
            self._manager.add_controller(controller)
        self._manager.add_controller(
            token.new_controller(
                client=self._shoot.cluster.client, config=self._config.controllers.token, resync=resync
            )
        )
        for controller in new_controllers(self._node_parts()):
            self._manager.add_controller(controller)
        self._manager.add_controller(status.new_controller(self._status))
        self._manager.add_task("memory", self._memory.run)

    def _say_notes(self, _old: Node | None, node: Node | None) -> None:
        """Say what was found out about the configuration as soon as there is a Node to say it about."""
        if node is None:
            return
        notes, self._notes = self._notes, ()
        speaker = NodeEvents(recorder=self._shoot.cluster.recorder, node=lambda: node, controller="gardener-node-agent")
        for note in notes:
            speaker.event("Warning", reason=note.reason, action="ReadConfiguration", note=note.text)

    def _speaker(self, controller: str) -> NodeEvents:
        shoot = self._shoot
        return NodeEvents(recorder=shoot.cluster.recorder, node=lambda: shoot.identity.node, controller=controller)

    def _node_parts(self) -> NodeParts:
        return NodeParts(
            config=self._config,
            config_path=self._config_path,
            client=self._shoot.cluster.client,
            recorder=self._shoot.cluster.recorder,
            nodes=self._shoot.nodes,
            identity=self._shoot.identity,
            units=self._units,
            in_use=self._in_use,
            budget=self._budget,
            containerd=self._containerd,
            kubelet=self._kubelet,
            shutdown=self._shutdown,
            restart_self=None if self._owner is None else self._end_for_a_restart,
            clock=self._server_clock,
            paths=self._paths,
        )

    def _end_for_a_restart(self) -> None:
        """Where systemd would start a service that nobody wants now: whoever runs us is told."""
        self._shutdown.request("restart of the agent asked for by an annotation of the Node")

    def _new_osc_controller(self, resync: ChannelSource) -> OperatingSystemConfigController:
        shoot = self._shoot
        tokens = token.paths_by_secret(self._config.controllers.token.sync_configs)
        return OperatingSystemConfigController(
            Parts(
                config=self._config,
                paths=self._paths,
                clock=self._clock,
                server_clock=self._server_clock,
                client=shoot.cluster.client,
                recorder=shoot.cluster.recorder,
                secrets=shoot.secrets,
                nodes=shoot.nodes,
                identity=shoot.identity,
                credentials=self._credentials,
                journal=self._journal,
                units=self._units,
                in_use=self._in_use,
                budget=self._budget,
                containerd=self._containerd,
                kubelet=self._kubelet,
                images=self._images,
                status=self._status,
                applied=self._counts.applied,
                release_memory=self._memory.ask,
                shutdown=self._shutdown,
                search_path=self._search_path,
                token_resync=resync,
                tokens={path: request for request, paths in tokens.items() for path in paths},
            )
        )

    async def _check_consistency(self, reconciler: OperatingSystemConfigReconciler) -> None:
        step = FileConsistency(
            journal=self._journal,
            units=self._units,
            hostname=self._hostname,
            root=self._paths.root,
            node=lambda: self._shoot.identity.node,
            report=self._report_finding,
            repair=reconciler.repair,
        )
        await step.run()

    def _report_finding(self, node: Node, finding: Finding) -> None:
        self._shoot.cluster.recorder.core_event(
            reference(node),
            event_type="Warning",
            reason=finding.reason,
            message=finding.message,
            component="osc-checker",
        )

    def _heartbeat_tried(self) -> None:
        self._last_try = self._clock.monotonic()

    def _heartbeat_silence(self) -> float | None:
        return None if self._last_try is None else self._clock.monotonic() - self._last_try

    async def _renewed(self) -> None:
        self._last_heartbeat = self._clock.monotonic()
        self._status.note_heartbeat()
        self._shoot.clock_report.tell()

    async def _certificate_expires(self, moment: datetime) -> None:
        self._counts.certificate_expires(moment)
        await self._status.certificate(moment)

    def _heartbeat_age(self) -> float | None:
        return None if self._last_heartbeat is None else self._clock.monotonic() - self._last_heartbeat

    @property
    def _shoot(self) -> "_ShootCluster":
        if self._cluster is None:  # pragma: no cover - the order of the start-up steps
            raise RuntimeError("not connected yet")
        return self._cluster


def _end_soon(abort: Callable[[int], None]) -> None:
    """End the process even if a thread hangs: the interpreter would wait for it without a limit."""
    timer = threading.Timer(STOP_DEADLINE.total_seconds(), abort, args=(1,))
    timer.daemon = True
    timer.start()


class _ShootCluster:
    """The cluster with the informers that the controllers share: two watches, no more."""

    def __init__(
        self, cluster: Cluster, hostname: str, config: NodeAgentConfiguration, server_clock: ServerClock
    ) -> None:
        self.cluster = cluster
        secret_name = config.controllers.operating_system_config.secret_name
        self.secrets: Informer[Secret] = cluster.cache.informer(
            SECRETS, namespace=NAMESPACE, field_selector=f"metadata.name={secret_name}"
        )
        self.nodes: Informer[Node] = cluster.cache.informer(NODES, label_selector=hostname_selector(hostname).label)
        self.identity = NodeIdentity(hostname=hostname, nodes=self.nodes, ambiguous=self._say_ambiguous)
        events = NodeEvents(recorder=cluster.recorder, node=lambda: self.identity.node, controller="lease")
        self.clock_report = ClockReport(clock=server_clock, events=events)

    def _say_ambiguous(self, nodes: Sequence[Node]) -> None:
        names = ", ".join(sorted(node.metadata.name for node in nodes))
        for node in nodes:
            self.cluster.recorder.event(
                reference(node),
                event_type="Warning",
                reason="HostNameNotUnique",
                action="Identify",
                note=f"Several Nodes carry the host name {self.identity.hostname}: {names}. Which is this machine's "
                "cannot be told, so there is no heartbeat until only one of them is left",
                controller="gardener-node-agent",
            )
