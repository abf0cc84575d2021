"""Updates in place: what asks for them, and what others do to a machine and its Node meanwhile."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agents.kube.models import NODES
from tests.support.osc_agent import SLEEP, OscAgent, inline

KUBELET = "/var/lib/kubelet/config/kubelet"
RESULT = "node.machine.sapcloud.io/update-result"
REASON = "node.machine.sapcloud.io/update-failed-reason"
UPDATING = "node-agent.gardener.cloud/updating-operating-system-version"
ROTATED = {"lastInitiationTime": "2026-01-01T00:00:00Z"}
ROTATED_AGAIN = {"lastInitiationTime": "2026-06-01T00:00:00Z"}


def publish(
    node: OscAgent,
    *,
    version: str = "1.0.0",
    command: str = "",
    args: tuple[str, ...] = (),
    rotation: Any = None,
    more: Sequence[Mapping[str, Any]] = (),
    runtime: Any = None,
    serial: bool = False,
    **kubelet: Any,
) -> str:
    """Publish an OSC for updates in place; the command is a shell's."""
    wanted = {"operatingSystemVersion": version, "kubelet": "1.34.1", "credentialsRotation": rotation}
    update = {"osUpdate": {"command": "/bin/sh", "args": ["-c", command, *args]}} if command else None
    return node.publish(
        files=[inline(KUBELET, json.dumps(kubelet)), inline("/etc/os", version), *more],
        units=[{"name": "kubelet.service", "content": SLEEP, "filePaths": [KUBELET]}],
        inPlaceUpdates=wanted,
        criConfig=runtime,
        status={"inPlaceUpdates": update},
        serial=serial,
    )


def run_os(node: OscAgent, version: str) -> None:
    """Let the machine run a version of its operating system."""
    path = node.paths.os_release
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'NAME=x\nPRETTY_NAME="Some Linux {version} (name)"\n')


def drain(node: OscAgent) -> None:
    """Do what machine-controller-manager does before an update."""
    document = node.node()
    conditions = [{"type": "InPlaceUpdate", "status": "True", "reason": "ReadyForUpdate"}]
    node.api.put(NODES, {**document, "status": {"conditions": conditions}})


def metadata(node: OscAgent) -> tuple[str | None, str | None, str | None]:
    """Return result, reason and attempted version as the Node has them."""
    found = node.node()["metadata"]
    annotations = found.get("annotations", {})
    return found.get("labels", {}).get(RESULT), annotations.get(REASON), annotations.get(UPDATING)


def give_kubelet_credentials(node: OscAgent, text: str) -> None:
    """Let the kubelet have a kubeconfig and a certificate."""
    certificate = node.paths.kubelet_client_certificate
    certificate.parent.mkdir(parents=True, exist_ok=True)
    certificate.write_text(text)
    node.paths.kubelet_kubeconfig.write_text('{"contexts": [{"name": "default-context"}], "current-context": "x"}')
