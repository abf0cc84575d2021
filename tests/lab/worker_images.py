"""The images that a worker pool's programs come out of, as Gardener delivers them: one for the agent, one for the kubelet.

Their layers are not compressed: whoever joins a machine does not wait for gzip, and nothing here depends on it.
"""

from pathlib import Path

from tests.lab.agent import AgentSource
from tests.lab.binaries import KUBERNETES_VERSION
from tests.lab.oci import Entry, Image
from tests.lab.registry import CA_FILE, Registry
from tests.lab.worker_osc import WorkerImages


def publish_worker_images(registry: Registry, agent: AgentSource, kubelet: Path) -> WorkerImages:
    """Push both images; what the registry has already is not sent again.

    Args:
        registry: with TLS.
        agent: what is at `/gardener-node-agent`.
        kubelet: what is at `/kubelet`.
    """
    node_agent = Image.build([Entry("gardener-node-agent", agent.file())], compress=False)
    hyperkube = Image.build([Entry("kubelet", kubelet.read_bytes())], compress=False)
    return WorkerImages(
        node_agent=registry.push(node_agent, "gardener/node-agent", agent.version()),
        kubelet=registry.push(hyperkube, "gardener/hyperkube", KUBERNETES_VERSION),
        registry=registry.hosts_entry(),
        ca_file=CA_FILE,
        ca_pem=registry.ca_pem.decode(),
    )
