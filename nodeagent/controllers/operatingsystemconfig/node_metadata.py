"""What the OSC controller writes to the Node: as JSON merge patches with only the keys that we own, and never an empty one.

Source: contract 6.2 steps 4 and 30, 6.9; W39.
"""

from collections.abc import Mapping

from agents.kube.models import Node
from osc.types import OperatingSystemConfig

CHECKSUM_ANNOTATION = "checksum/cloud-config-data"
VERSION_LABEL = "worker.gardener.cloud/kubernetes-version"
ZONE_LABEL = "topology.kubernetes.io/zone"
WORKER_LABEL = "node-role.kubernetes.io/worker"
CONTROL_PLANE_LABEL = "node-role.kubernetes.io/control-plane"
API_SERVER_MANIFEST = "/etc/kubernetes/manifests/kube-apiserver.yaml"


def applied_checksum(node: Node | None) -> str | None:
    """Return the checksum that the Node says was applied."""
    return None if node is None else node.metadata.annotations.get(CHECKSUM_ANNOTATION)


def missing_labels(node: Node, config: OperatingSystemConfig, zone: str) -> Mapping[str, str]:
    """Return the role and zone labels that the Node does not have yet. The opposite role is never removed."""
    control_plane = any(file.path == API_SERVER_MANIFEST for file in config.spec.files)
    wanted = {CONTROL_PLANE_LABEL if control_plane else WORKER_LABEL: ""}
    if zone:
        wanted[ZONE_LABEL] = zone
    return {key: value for key, value in wanted.items() if node.metadata.labels.get(key) != value}


def labels_patch(labels: Mapping[str, str]) -> Mapping[str, object]:
    """Return the patch that adds labels."""
    return {"metadata": {"labels": dict(labels)}}


def applied_patch(checksum: str, kubernetes_version: str) -> Mapping[str, object]:
    """Return the patch that says what was applied, for which version."""
    return {
        "metadata": {"labels": {VERSION_LABEL: kubernetes_version}, "annotations": {CHECKSUM_ANNOTATION: checksum}},
    }
