"""The OSC controller with everything below it, on an API server in memory and a systemd in this process, below a folder."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from agents.core import files
from agents.core.errors import AgentError, RetriableError
from agents.core.generations import Generations
from agents.core.shutdown import Shutdown
from agents.kube.client import Client
from agents.kube.events import EventRecorder
from agents.kube.models import EVENTS, NODES, PODS, SECRETS
from agents.runtime.cache import Cache
from agents.runtime.cluster import Cluster
from agents.runtime.controller import Controller, Environment
from agents.runtime.metrics import Metrics
from agents.runtime.reconcile import Request, Result
from nodeagent.controllers.operatingsystemconfig import build
from nodeagent.controllers.operatingsystemconfig.apply import Applier
from nodeagent.controllers.operatingsystemconfig.apply_pass import Outcome
from nodeagent.controllers.operatingsystemconfig.containerd import ContainerdFiles
from nodeagent.controllers.operatingsystemconfig.controller import Dependencies, OperatingSystemConfigReconciler
from nodeagent.controllers.operatingsystemconfig.drift import Drift
from nodeagent.controllers.operatingsystemconfig.inplace import Host, InPlaceUpdate
from nodeagent.controllers.operatingsystemconfig.kubelet_credentials import KubeletCredentials
from nodeagent.controllers.operatingsystemconfig.serial import SerialLock
from nodeagent.controllers.operatingsystemconfig.units import UnitJobs
from nodeagent.host.consistency import Finding
from nodeagent.host.extracted_files import ExtractedFiles, RememberingExtractor
from nodeagent.host.file_watch import FileWatch
from nodeagent.host.image_extractor import Extraction
from nodeagent.host.node_events import NodeEvents
from nodeagent.host.node_identity import NodeIdentity, hostname_selector
from nodeagent.host.originals import Originals
from nodeagent.host.restart_budget import RestartBudget
from nodeagent.host.units_in_use import UnitsInUse
from nodeagent.paths import Paths
from nodeagent.status import StatusBoard
from osc.journal import Journal
from systemd.manager import SystemdUnitManager
from tests.support.clock import FakeClock
from tests.support.fake_api import FakeApi
from tests.support.fake_systemd import FakeSystemd
from tests.support.tasks import running

HOSTNAME = "worker-1"
SECRET = "gardener-node-agent-pool"
KEY = Request("kube-system", SECRET)
APPLIED = "checksum/cloud-config-data"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
SLEEP = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"


def inline(path: str, data: str, mode: int | None = None) -> dict[str, Any]:
    """Return a file entry of an OSC."""
    permissions = {} if mode is None else {"permissions": mode}
    return {"path": path, **permissions, "content": {"inline": {"encoding": "", "data": data}}}


def from_secret(path: str, name: str, key: str = "key") -> dict[str, Any]:
    """Return a file entry whose content is in a Secret."""
    return {"path": path, "content": {"secretRef": {"name": name, "dataKey": key}}}


def from_image(path: str, image: str, source: str, mode: int = 0o755) -> dict[str, Any]:
    """Return a file entry whose content is in a container image."""
    return {"path": path, "permissions": mode, "content": {"imageRef": {"image": image, "filePathInImage": source}}}


def containerd(**section: Any) -> dict[str, Any]:
    """Return an OSC's `criConfig`."""
    return {"name": "containerd", "cgroupDriver": "systemd", "containerd": {"sandboxImage": "pause", **section}}


def b64(text: str) -> str:
    """Return a value of a Secret's data."""
    return b64encode(text.encode()).decode()


class FakeContainerd:
    """containerd as it answers: its version and default configuration; tests on machines ask the real one."""

    def __init__(self) -> None:
        self.running = "1.6.20~ds1"
        self.error: AgentError | None = None

    async def version(self) -> str:
        """Return the version, or fail as told."""
        if self.error is not None:
            raise self.error
        return self.running

    async def default_config(self) -> bytes:
        """Return a small configuration of version 2."""
        return b"version = 2\nroot = '/var/lib/containerd'\n"


class FakeImages:
    """Images as mappings from path to content; an image without an entry cannot be pulled."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.images: dict[str, dict[str, bytes]] = {}
        self.pulls: list[str] = []
        self.cleaned = 0
        self.blocked: asyncio.Event | None = None

    async def extract(self, image: str, wanted: Sequence[Extraction]) -> Mapping[str, bool | AgentError]:
        """Write what is there."""
        self.pulls.append(image)
        if self.blocked is not None:
            await self.blocked.wait()
        if image not in self.images:
            return {item.target: RetriableError("image not pulled", image=image) for item in wanted}
        return {item.target: self._copy(image, item) for item in wanted}

    def _copy(self, image: str, item: Extraction) -> bool | AgentError:
        content = self.images[image].get(item.source)
        if content is None:
            return RetriableError("file is not in the image", image=image, file=item.source)
        return files.write_atomic(self.root / item.target.lstrip("/"), content, mode=item.mode)

    async def clean(self) -> None:
        """Count: nothing is ever left."""
        self.cleaned += 1


class FakeMachine:
    """The kubelet and the credentials, as far as updates in place need them."""

    def __init__(self) -> None:
        self.kubelet_problem: AgentError | None = None
        self.kubelet_restarts = self.renewals = self.resyncs = 0
        self.on_restart: Callable[[], None] = lambda: None

    async def kubelet_healthy(self) -> None:
        """Fail as told."""
        if self.kubelet_problem is not None:
            raise self.kubelet_problem

    async def restart_kubelet(self) -> None:
        """Count, and do what a kubelet does when it starts."""
        self.kubelet_restarts += 1
        self.on_restart()

    async def renew_certificate(self) -> None:
        """Count."""
        self.renewals += 1

    def resync_tokens(self) -> None:
        """Count."""
        self.resyncs += 1


class OscAgent:
    """One node: its disk below `root`, its systemd, its API server, and the controller."""

    def __init__(self, root: Path, host: FakeSystemd) -> None:
        self.root, self.host, self.clock, self.api = root, host, FakeClock(), FakeApi()
        self.paths = Paths(root=root)
        self.client = Client(transport=self.api, rng=Random(1))
        self.cache = Cache(client=self.client, clock=self.clock, rng=Random(1))
        self.secrets = self.cache.informer(SECRETS, namespace="kube-system", field_selector=f"metadata.name={SECRET}")
        self.nodes = self.cache.informer(NODES, label_selector=hostname_selector(HOSTNAME).label)
        self.recorder = EventRecorder(client=self.client, instance=HOSTNAME, clock=self.clock)
        self.units = SystemdUnitManager(address=host.address)
        self.shutdown = Shutdown()
        self.removed: list[str] = []
        self.repairs_drift = True
        self.drifted: list[tuple[str, str]] = []
        self.messages: list[str] = []
        self.moved_tags: list[str] = []
        self.metrics = Metrics()
        self.memory_releases = 0
        self.applied_plan: Callable[[Outcome, float], None] = lambda _outcome, _seconds: None
        self.containerd, self.images, self.machine = FakeContainerd(), FakeImages(root), FakeMachine()
        self.start_process()

    def start_process(self) -> None:
        """Forget all that only a process knows, as a restart does."""
        self.shutdown = Shutdown()
        self.identity = NodeIdentity(hostname=HOSTNAME, nodes=self.nodes)
        self.journal = Journal(
            pending_path=self.paths.pending_changes,
            last_applied_path=self.paths.last_applied,
            generations=Generations(self.paths.generations),
            clock=self.clock,
        )
        events = NodeEvents(recorder=self.recorder, node=lambda: self.identity.node, controller="operatingsystemconfig")
        self.in_use = UnitsInUse()
        self.budget = RestartBudget(path=self.paths.restarts, clock=self.clock, boot_id="boot")
        self.jobs = UnitJobs(
            units=self.units,
            clock=self.clock,
            notify=events.unit_processed,
            record=self.paths.unit_jobs,
            in_use=self.in_use,
        )
        self._start_disk()
        self._start_updates()
        self._start_reconciler()

    def _start_disk(self) -> None:
        """Make what writes to the disk, and what watches it."""
        self.originals = Originals(folder=self.paths.originals, root=self.root)
        self.containerd_files = ContainerdFiles(containerd=self.containerd, originals=self.originals, root=self.root)
        self.extracted = ExtractedFiles(record=self.paths.extracted, root=self.root)
        self.drift = Drift(
            extracted=self.extracted,
            secret_digests=lambda: self.journal.load().secret_digests,
            repair=self.repairs_drift,
            units=self.units,
            containerd=self.containerd_files,
            report=self._note_drift,
            clock=self.clock,
            budget=self.budget,
            root=self.root,
        )
        self.file_watch = FileWatch(request=KEY, touched=self.drift.suspect, root=self.root)
        self.lock = SerialLock(client=self.client, holder=HOSTNAME, clock=self.clock)
        self.applier = Applier(
            unit_manager=self.units,
            jobs=self.jobs,
            journal=self.journal,
            containerd=self.containerd_files,
            images=RememberingExtractor(
                images=self.images, extracted=self.extracted, moved=lambda tag: self.moved_tags.append(tag.note)
            ),
            originals=self.originals,
            file_removed=self.removed.append,
            check=self.lock.check,
            clock=self.clock,
            root=self.root,
        )

    def _note_drift(self, finding: Finding, action: str) -> None:
        self.drifted.append((finding.reason, action))
        self.messages.append(finding.message)

    def _start_updates(self) -> None:
        """Make what updates in place."""
        self.update_failures: list[str] = []
        credentials = KubeletCredentials(paths=self.paths, server="https://api", ca_file="/ca.crt")
        self.in_place = InPlaceUpdate(
            client=self.client,
            journal=self.journal,
            clock=self.clock,
            host=Host(
                kubelet_healthy=self.machine.kubelet_healthy,
                restart_kubelet=self.machine.restart_kubelet,
                renew_certificate=self.machine.renew_certificate,
                resync_tokens=self.machine.resync_tokens,
                kubelet_credentials=credentials,
                os_release=self.paths.os_release,
                state=self.paths.operating_system_update,
                failed=self.update_failures.append,
            ),
        )

    def _start_reconciler(self) -> None:
        """Make the reconciler of all that."""
        self.status = StatusBoard(path=self.paths.status, clock=self.clock, version="v1.150.0")
        self.reconciler = OperatingSystemConfigReconciler(
            Dependencies(
                secrets=self.secrets,
                identity=self.identity,
                client=self.client,
                recorder=self.recorder,
                journal=self.journal,
                applier=self.applier,
                jobs=self.jobs,
                originals=self.originals,
                containerd=self.containerd_files,
                drift=self.drift,
                watch=self.file_watch.watch,
                in_place=self.in_place,
                lock=self.lock,
                search_path=SEARCH_PATH,
                status=self.status,
                shutdown=self.shutdown,
                clock=self.clock,
                paths=self.paths,
                sync_period=timedelta(minutes=10),
                kubernetes_version="1.34.4",
                applied=lambda outcome, seconds: self.applied_plan(outcome, seconds),
                release_memory=self._count_release,
            )
        )

    def _count_release(self) -> None:
        self.memory_releases += 1

    # What the world does.

    def publish(
        self,
        *,
        files: Sequence[Mapping[str, Any]] = (),
        units: Sequence[Mapping[str, Any]] = (),
        annotations: Mapping[str, str] | None = None,
        status: Mapping[str, Any] | None = None,
        serial: bool = False,
        **more: Any,
    ) -> str:
        """Publish an OSC with further fields of its spec; returns the checksum of its bytes."""
        spec = {"files": list(files), "units": list(units), **more}
        document = {"apiVersion": "extensions.gardener.cloud/v1alpha1", "kind": "OperatingSystemConfig", "spec": spec}
        if status is not None:
            document["status"] = status
        if serial:
            annotations = {"reconciliation.osc.node-agent.gardener.cloud/serial": "true"}
        return self.publish_bytes(json.dumps(document).encode(), annotations=annotations)

    def publish_bytes(self, data: bytes, *, annotations: Mapping[str, str] | None = None) -> str:
        """Publish bytes as the OSC; returns their checksum."""
        checksum = sha256(data).hexdigest()
        if annotations is None:
            annotations = {"checksum/data-script": checksum}
        self.put_secret(SECRET, "osc.yaml", data.decode(), annotations=annotations)
        return checksum

    def put_secret(self, name: str, key: str, text: str, annotations: Mapping[str, str] | None = None) -> None:
        """Create or replace a Secret."""
        metadata = {"name": name, "namespace": "kube-system", "annotations": dict(annotations or {})}
        self.api.put(SECRETS, {"metadata": metadata, "data": {key: b64(text)}})

    def register_node(self, **annotations: str) -> None:
        """Do what the kubelet does."""
        metadata = {"name": HOSTNAME, "labels": {"kubernetes.io/hostname": HOSTNAME}, "annotations": annotations}
        self.api.put(NODES, {"metadata": metadata})

    def run_pod(self, name: str, *, version: str = "", phase: str = "Running", ready: str = "True") -> None:
        """Do what the kubelet does with a static pod."""
        metadata = {
            "name": f"{name}-{HOSTNAME}",
            "namespace": "kube-system",
            "labels": {"static-pod": "true"},
            "annotations": {"gardener.cloud/config.mirror": version},
        }
        status = {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}
        self.api.put(PODS, {"metadata": metadata, "spec": {"nodeName": HOSTNAME}, "status": status})

    # What can be seen.

    def node(self) -> dict[str, Any]:
        """Return the Node."""
        node = self.api.read(NODES, HOSTNAME)
        assert node is not None
        return node

    def applied(self) -> str | None:
        """Return the checksum on the Node."""
        found = self.node()["metadata"].get("annotations", {}).get(APPLIED)
        return None if found is None else str(found)

    def read(self, path: str) -> str | None:
        """Return a file of the machine."""
        place = self.root / path.lstrip("/")
        return place.read_text() if place.is_file() else None

    def events(self, reason: str) -> list[dict[str, Any]]:
        """Return events with a reason."""
        return [event for event in self.api.stored(EVENTS) if event["reason"] == reason]

    def status_document(self) -> dict[str, Any]:
        """Return the status file."""
        document: dict[str, Any] = json.loads(self.paths.status.read_text())
        return document

    def restart_reason(self) -> str | None:
        """Return why the process wants to end, None if it does not."""
        return self.shutdown.requested

    def calls(self, member: str) -> int:
        """Return how often a D-Bus method was called."""
        return self.host.received.count(member)

    # Running it.

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Keep caches and events going, without the controller."""
        cluster = Cluster(name="shoot", client=self.client, cache=self.cache, recorder=self.recorder)
        async with running(cluster.run, self._send_bookmarks):
            for informer in self.cache:
                await informer.wait_synced()
            self.identity.start()
            yield
        await self.units.close()

    async def _send_bookmarks(self) -> None:
        """Send one a minute, as the real API server does: a watch that is silent for longer counts as broken."""
        while True:
            await asyncio.sleep(60)
            self.api.bookmark()

    @asynccontextmanager
    async def controlling(self) -> AsyncIterator[None]:
        """Run the controller as the process would."""
        controller = build.new_controller(
            reconciler=self.reconciler,
            secrets=self.secrets,
            nodes=self.nodes,
            identity=self.identity,
            secret_name=SECRET,
            more=[self.file_watch],
        )
        environment = Environment(clock=self.clock, rng=Random(1), metrics=self.metrics)
        self.cache.on_recovery(controller.retry_api_errors)
        async with self.connected(), running(lambda: controller.run(environment)):
            yield

    async def reconcile(self) -> Result:
        """Do one pass over the OSC as the cache has it after a moment."""
        await asyncio.sleep(0.5)
        return await self.reconciler.reconcile(KEY)


async def run_controller(controller: Controller, seconds: float) -> None:
    """Run any controller for some virtual seconds."""
    environment = Environment(clock=FakeClock(), rng=Random(1), metrics=Metrics())
    async with running(lambda: controller.run(environment)):
        await asyncio.sleep(seconds)
