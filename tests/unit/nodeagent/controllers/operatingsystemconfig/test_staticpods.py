"""Static pods of the OSC: waited for, in the version that it brought."""

import json
from datetime import timedelta
from typing import Any

import pytest

from agents.kube.models import PODS
from osc.errors import InvalidOSC
from tests.support.osc_agent import HOSTNAME, OscAgent, inline


def manifest(name: str = "etcd", version: str = "v1", path: str = "") -> dict[str, Any]:
    """Return a static pod's file."""
    metadata = {"name": name, "annotations": {"gardener.cloud/config.mirror": version}}
    text = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    return inline(path or f"/etc/kubernetes/manifests/{name}.yaml", text)


async def test_the_osc_counts_as_applied_once_its_static_pods_run(node: OscAgent) -> None:
    """Contract 6.12, 6.10: missing, old, not running, not ready, surplus: looked at again after 5 s; then reported."""
    checksum = node.publish(files=[manifest()])
    async with node.connected():
        for seen in ({}, {"version": "v0"}, {"version": "v1", "phase": "Pending"}, {"version": "v1", "ready": "False"}):
            if seen:
                node.run_pod("etcd", **seen)
            assert (await node.reconcile()).requeue_after == timedelta(seconds=5)
            assert node.applied() is None
            (item,) = node.status_document()["items"]
            assert (item["name"], "etcd" in item["cause"]) == ("static pods", True)
        node.run_pod("etcd", version="v1")
        node.run_pod("surplus")
        await node.reconcile()
        assert node.applied() is None
        node.api.remove(PODS, f"surplus-{HOSTNAME}", "kube-system")
        await node.reconcile()
        assert node.applied() == checksum


async def test_a_pod_that_has_succeeded_is_fine(node: OscAgent) -> None:
    """Contract 6.12: Running or Succeeded, and Ready."""
    checksum = node.publish(files=[manifest()])
    node.run_pod("etcd", version="v1", phase="Succeeded")
    async with node.connected():
        await node.reconcile()
    assert node.applied() == checksum


async def test_w46_a_neighbour_of_the_manifests_is_no_static_pod(node: OscAgent) -> None:
    """Contract 9 W46: the directory counts, not what begins like it; without static pods nobody asks for pods."""
    checksum = node.publish(files=[inline("/etc/kubernetes/manifests-old/x.yaml", "no pod")])
    async with node.connected():
        await node.reconcile()
    assert node.applied() == checksum
    assert not [call for call in node.api.calls if "/pods" in call.path]


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "{}",
        '{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}',
        '{"apiVersion": "v1", "kind": "Pod"}',
        "5",
    ],
)
async def test_a_manifest_that_is_no_pod_is_refused(node: OscAgent, text: str) -> None:
    """Contract 6.12: an error, before anything is changed, with the path of the file."""
    node.publish(files=[inline("/etc/kubernetes/manifests/a.yaml", text), inline("/etc/a", "1")])
    async with node.connected():
        with pytest.raises(InvalidOSC, match=r"manifests/a\.yaml"):
            await node.reconcile()
    assert node.read("/etc/a") is None
