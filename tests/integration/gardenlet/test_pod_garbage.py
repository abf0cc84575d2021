"""Pods that nobody needs any more, on a real API server; nodes and kubelets are missing, which is just what gets pods stuck."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agents.core.clock import SystemClock
from agents.kube.client import Client, DeleteOptions
from agents.kube.kubeconfig import Credentials
from agents.kube.patch import merge
from agents.runtime.reconcile import Request
from gardenlet.apis.core_objects import NAMESPACES, SERVICE_ACCOUNTS
from gardenlet.apis.pods import PODS, Pod
from gardenlet.controllers.seed import garbage
from tests.lab.api import Api, wait_for
from tests.lab.controlplane import ControlPlane

Document = dict[str, Any]
REQUEST = Request("", "pods")
EVICTED: Document = {"phase": "Failed", "reason": "Evicted"}
RUNNING: Document = {"phase": "Running"}


class LaterClock(SystemClock):
    """The machine's clock, some minutes ahead."""

    def __init__(self, minutes: float) -> None:
        self._ahead = timedelta(minutes=minutes)

    def now(self) -> datetime:
        """Return the wall clock as it will be."""
        return datetime.now(UTC) + self._ahead


class Pods:
    """Pods of one namespace of a real seed."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace

    async def prepare(self) -> None:
        """Create what pods need."""
        if self.namespace != "kube-system":
            await self.client.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        if "default" not in {one.metadata.name for one in await self._accounts()}:
            await self.client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace=self.namespace)

    async def _accounts(self) -> Sequence[Any]:
        return (await self.client.list(SERVICE_ACCOUNTS, namespace=self.namespace)).items

    async def put(self, name: str, status: Document, **metadata: Any) -> Pod:
        """Create a pod on a node that does not exist, with a status."""
        spec = {"nodeName": "nowhere", "containers": [{"name": "c", "image": "registry.invalid/image"}]}
        document = {"metadata": {"name": name, **metadata}, "spec": spec}
        await self.client.create(PODS, document, namespace=self.namespace)
        patch = merge({"status": status})
        return await self.client.patch(PODS, name, patch, namespace=self.namespace, subresource="status")

    async def delete(self, name: str) -> None:
        """Delete a pod as anybody would; it stays, since there is no kubelet."""
        await self.client.delete(PODS, name, namespace=self.namespace)

    async def left(self) -> dict[str, Pod]:
        """Return the pods that are there, by name."""
        return {one.metadata.name: one for one in (await self.client.list(PODS, namespace=self.namespace)).items}

    def collector(self, *, minutes: float = 0, page: int = 500) -> garbage.PodGarbageCollector:
        """Return a collector whose clock is some minutes ahead."""
        return garbage.PodGarbageCollector(garbage.Parts(seed=self.client, clock=LaterClock(minutes), page=page))


@pytest.fixture
async def pods(client: Client, name: str) -> Pods:
    """A namespace without pods."""
    found = Pods(client, name)
    await found.prepare()
    return found


def owner(kind: str) -> list[Document]:
    """Return owner references."""
    return [{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "0", "controller": True}]


async def test_pods_that_nobody_needs(pods: Pods) -> None:
    """Contract core 7: what an eviction, a shortage, a lost node, a disruption or a rollout left goes; everything else stays."""
    target = {"type": "DisruptionTarget", "status": "True"}
    for number, reason in enumerate(("Evicted", "OutOfcpu", "NodeAffinity", "Preempting")):
        await pods.put(f"goes-{number}", {"phase": "Failed", "reason": reason})
    await pods.put("goes-disrupted", {"phase": "Failed", "conditions": [target]})
    await pods.put("goes-rollout", {"phase": "Succeeded"}, ownerReferences=owner("ReplicaSet"))
    await pods.put("lost", {**RUNNING, "reason": "NodeLost"})
    await pods.put("stays-running", RUNNING, ownerReferences=owner("ReplicaSet"))
    await pods.put("stays-job", {"phase": "Succeeded"}, ownerReferences=owner("Job"))
    await pods.put("stays-failed", {"phase": "Failed", "reason": "DeadlineExceeded"})
    await pods.collector().reconcile(REQUEST)
    left = await pods.left()
    assert set(left) == {"lost", "stays-running", "stays-job", "stays-failed"}
    # One that runs gets its time to end, which nobody on its node will tell us.
    assert [name for name, pod in left.items() if pod.metadata.deletion_timestamp] == ["lost"]


async def test_pods_stuck_in_deletion(pods: Pods) -> None:
    """Contract core 7: forced five minutes after its grace period, not before; one that waits for a finalizer waits on."""
    await pods.put("stuck", RUNNING)
    await pods.put("held", RUNNING, finalizers=["example.org/hold"])
    await pods.put("running", RUNNING)
    for name in ("stuck", "held"):
        await pods.delete(name)
    await pods.collector(minutes=5).reconcile(REQUEST)
    assert set(await pods.left()) == {"stuck", "held", "running"}
    await pods.collector(minutes=6).reconcile(REQUEST)
    left = await pods.left()
    assert set(left) == {"held", "running"}
    assert left["held"].metadata.deletion_grace_period_seconds == 0
    await pods.collector(minutes=60).reconcile(REQUEST)
    assert (await pods.left())["held"].metadata.resource_version == left["held"].metadata.resource_version
    await pods.client.patch(PODS, "held", merge({"metadata": {"finalizers": None}}), namespace=pods.namespace)
    assert set(await pods.left()) == {"running"}


async def test_kube_system_is_left_alone(client: Client, name: str) -> None:
    """Contract core 7: pods of kube-system are not even asked for."""
    system = Pods(client, "kube-system")
    await system.prepare()
    await system.put(name, EVICTED)
    await system.collector().reconcile(REQUEST)
    assert name in await system.left()
    await system.delete(name)


async def test_page_by_page(pods: Pods) -> None:
    """Contract core 7, W43: over many small pages, all that is to go goes."""
    for number in range(7):
        await pods.put(f"p-{number}", RUNNING if number % 2 else EVICTED)
    read = [page async for page in pods.client.pages(PODS, namespace=pods.namespace, size=3)]
    assert [len(page.items) for page in read] == [3, 3, 1]
    await pods.collector(page=3).reconcile(REQUEST)
    assert set(await pods.left()) == {"p-1", "p-3", "p-5"}


@pytest.mark.parametrize("change", ["another", "recovered"])
async def test_a_pod_that_is_another_by_now(pods: Pods, change: str) -> None:
    """Contract core 7: a new pod of the same name, and one whose state is another, are not hit by what was decided before."""
    judged = await pods.put("web-0", EVICTED)
    verdict = garbage.judge(judged, datetime.now(UTC))
    assert verdict is not None
    if change == "another":
        await pods.client.delete(PODS, "web-0", namespace=pods.namespace, options=DeleteOptions(grace_seconds=0))
        await pods.put("web-0", RUNNING)
    else:
        patch = merge({"status": {"phase": "Running", "reason": None}})
        await pods.client.patch(PODS, "web-0", patch, namespace=pods.namespace, subresource="status")
    await pods.collector().delete(verdict)
    found = (await pods.left())["web-0"]
    assert (found.status.phase, found.metadata.deletion_timestamp) == ("Running", "")


async def test_with_the_permissions_of_the_chart(
    pods: Pods, integration_control_plane: ControlPlane, new_client: Callable[..., Client]
) -> None:
    """Contract core 7, 12.2: list and delete are enough; without delete the others are tried, and how many are left is said."""
    path = SERVICE_ACCOUNTS.path("default", namespace=pods.namespace, subresource="token")
    token = (await pods.client.ask(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}))["status"]
    parts = garbage.Parts(seed=new_client(credentials=Credentials(token=token["token"])), clock=SystemClock())
    for name in ("a", "b"):
        await pods.put(name, EVICTED)
    grant(integration_control_plane.admin, pods.namespace, ["list", "watch"])
    with pytest.raises(garbage.PodsLeft) as caught:
        await garbage.PodGarbageCollector(parts).reconcile(REQUEST)
    assert caught.value.fields == {"pods": 2, "first": f"{pods.namespace}/a"}
    grant(integration_control_plane.admin, pods.namespace, ["list", "watch", "delete", "deletecollection"])
    await garbage.PodGarbageCollector(parts).reconcile(REQUEST)
    assert await pods.left() == {}


def grant(api: Api, name: str, verbs: list[str]) -> None:
    """Let a namespace's default account do these with pods everywhere, and wait until the API server knows."""
    group = "rbac.authorization.k8s.io"
    role, subject = f"{name}-{len(verbs)}", {"kind": "ServiceAccount", "name": "default", "namespace": name}
    rights = [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]
    api.create(f"/apis/{group}/v1/clusterroles", {"metadata": {"name": role}, "rules": rights})
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": role}
    binding = {"metadata": {"name": role}, "roleRef": reference, "subjects": [subject]}
    api.create(f"/apis/{group}/v1/clusterrolebindings", binding)
    asked = {"resource": "pods", "verb": verbs[-1]}
    review = {"spec": {"user": f"system:serviceaccount:{name}:default", "resourceAttributes": asked}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    wait_for(lambda: api.create(path, review)["status"]["allowed"], timeout=10, what="the permissions")
