"""gardenlet's image as Pods of the chart's Deployment, on a node that our own node agent made, against a real garden."""

import itertools
from collections.abc import Iterator

import pytest

from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.machine import Machine
from tests.support.gardenlet_pods import NAMESPACE, SEED, GardenletPods, garden_beside
from tests.support.worker import Worker

pytestmark = pytest.mark.machine
MOST_SECONDS = 6


@pytest.fixture(scope="module")
def node(lab: Lab, agent: AgentSource) -> Iterator[Machine]:
    """A node that joined; removed after the module."""
    if agent.kind != "binary":
        pytest.skip("the programs come from the source tree")
    with lab.removed_after(lab.add_machine("seed-node")) as machine:
        Worker.join(lab, machine, agent)
        yield machine


@pytest.fixture(scope="module")
def pods(lab: Lab, node: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GardenletPods]:
    """The release, with two replicas, of which one leads and beats."""
    with garden_beside(lab) as garden:
        release = GardenletPods(lab, node, garden, tmp_path_factory.mktemp("gardenlet"))
        release.install()
        try:
            release.wait_beating()
            release.wait_rolled_out()
            yield release
        finally:
            release.uninstall()


def test_the_chart_brings_the_image_up(pods: GardenletPods, node: Machine, lab: Lab) -> None:
    """Contract core 12.3, 3.1: installed with Helm and a bootstrap token, two Pods run on the node; one registered its Seed and beats."""
    running = pods.pods()
    assert [pod["spec"]["nodeName"] for pod in running] == [node.name, node.name]
    assert {pod["spec"]["containers"][0]["image"] for pod in running} == {pods.image}
    assert pods.leader() in pods.names()
    seed = pods.garden.api.get(f"/apis/core.gardener.cloud/v1beta1/seeds/{SEED}")
    assert any(one["type"] == "GardenletReady" and one["status"] == "True" for one in seed["status"]["conditions"])
    secrets = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    assert lab.api.find(f"{secrets}/gardenlet-kubeconfig") is not None
    assert lab.api.find(f"{secrets}/gardenlet-kubeconfig-bootstrap") is None


def test_the_documented_look_into_a_pod_works(pods: GardenletPods, node: Machine) -> None:
    """`kubectl exec deploy/gardenlet -- gardenlet status`, as the container runtime does it: there is that program, and no shell."""
    (pod,) = (pod for pod in pods.pods() if pod["metadata"]["name"] == pods.leader())
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    inside = ["ctr", "--namespace", "k8s.io", "tasks", "exec", "--exec-id"]
    told = node.run([*inside, "look", container, "gardenlet", "status"], check=False).stdout
    assert "beating" in told
    user = node.run([*inside, "shell", container, "/bin/sh", "-c", "id"], check=False)
    assert user.returncode != 0
    assert "no such file" in user.stderr


def test_an_update_leaves_no_gap(pods: GardenletPods) -> None:
    """Contract core 6: while both Pods are replaced, never more than 6 s pass between two renewals of the Seed's Lease."""
    before = pods.names()
    pods.wait_beating()
    with pods.keeping_logs() as logs:
        pods.install(podAnnotations={"test": "updated"})
        beats = pods.beats_until(lambda: pods.rolled_out() and before.isdisjoint(pods.names()))
        gaps = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(beats)]
        print(f"longest gap {max(gaps):.1f} s between {len(beats)} renewals")
        assert max(gaps) <= MOST_SECONDS, f"{beats}\n{logs()}"


def test_the_kubelet_restarts_one_that_does_not_beat(pods: GardenletPods) -> None:
    """Contract core 6.3, 12.3: the garden does not answer, `/healthz` is 500, the kubelet starts the container again; then it beats."""
    pods.wait_beating()
    leader = pods.leader()
    before = pods.restarts(leader)
    pods.garden.plane.freeze_apiserver()
    try:
        wait_for(lambda: pods.restarts(leader) > before, timeout=90, what="the container to be started again")
    finally:
        pods.garden.plane.thaw_apiserver()
    assert "Liveness probe failed: HTTP probe failed with statuscode: 500" in pods.events("Unhealthy", leader)
    pods.wait_beating()
    pods.wait_rolled_out()
