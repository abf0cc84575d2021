"""OperatingSystemConfig documents as gardenlet would render them for a worker: contract 5.1, 5.3 and 5.5."""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from tests.lab.pause import PAUSE_IMAGE

AGENT_UNIT = "gardener-node-agent.service"
INIT_UNIT = "gardener-node-init.service"
KUBELET_UNIT = "kubelet.service"
AGENT_FOLDER = "/var/lib/gardener-node-agent"
AGENT_BINARY = "/opt/bin/gardener-node-agent"
KUBELET_BINARY = "/opt/bin/kubelet"
CLUSTER_CA_FILE = f"{AGENT_FOLDER}/cluster-ca.crt"
KUBELET_CA_FILE = "/var/lib/kubelet/ca.crt"
KUBELET_CONFIG_FILE = "/var/lib/kubelet/config/kubelet"
CHECKSUM_ANNOTATION = "checksum/data-script"
_API_VERSION = "extensions.gardener.cloud/v1alpha1"

# Contract, Appendix D: these bytes are an interface, and the last line has no line feed.
AGENT_UNIT_CONTENT = """\
[Unit]
Description=Gardener Node Agent
After=network-online.target

[Service]
LimitMEMLOCK=infinity
ExecStart=/opt/bin/gardener-node-agent --config-dir=/var/lib/gardener-node-agent
Restart=always
RestartSec=5
StandardOutput=journal+console
StandardError=journal

[Install]
WantedBy=multi-user.target"""


@dataclass(frozen=True, slots=True)
class WorkerImages:
    """Images out of which a worker gets its programs, and the registry that has them.

    Attributes:
        node_agent: reference with digest; the agent is at `/gardener-node-agent`.
        kubelet: reference with digest; the kubelet is at `/kubelet`.
        registry: an element of `spec.criConfig.containerd.registries`.
        ca_file: where machines are to find the registry's CA.
        ca_pem: that CA.
    """

    node_agent: str
    kubelet: str
    registry: Mapping[str, Any]
    ca_file: str
    ca_pem: str


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """What all machines of a pool share.

    Attributes:
        name: of the pool.
        server: URL of the API server, as machines reach it.
        ca_pem: CA of the cluster.
        agent_version: version of the agent, with `v`; it is part of the config file's name.
        kubernetes_version: with `v`.
        images: where its programs come from; None if they are on the machines already.
    """

    name: str
    server: str
    ca_pem: str
    agent_version: str
    kubernetes_version: str
    images: WorkerImages | None = None

    @property
    def secret_name(self) -> str:
        """Name of the OSC Secret; opaque to the agent."""
        digest = hashlib.sha256(f"{self.name}{self.kubernetes_version}".encode()).hexdigest()[:16]
        return f"gardener-node-agent-{self.name}-{digest}"

    @property
    def agent_config_path(self) -> str:
        """Path of the agent's config file: one per version, contract 1.3."""
        return f"{AGENT_FOLDER}/config-{self.agent_version}.yaml"

    def agent_config(self, **controllers: Mapping[str, Any]) -> str:
        """Return the agent's config file, contract 2; further controllers' sections can be given.

        Unset values are rendered as gardenlet renders them: empty strings and zeros.
        """
        osc = {"secretName": self.secret_name, "kubernetesVersion": self.kubernetes_version, "syncPeriod": "10m0s"}
        document = {
            "apiVersion": "nodeagent.config.gardener.cloud/v1alpha1",
            "kind": "NodeAgentConfiguration",
            "clientConnection": {"acceptContentTypes": "", "burst": 0, "contentType": "", "kubeconfig": "", "qps": 0},
            "logLevel": "info",
            "logFormat": "json",
            "server": {},
            "apiServer": {"server": self.server, "caFile": CLUSTER_CA_FILE},
            "controllers": {"operatingSystemConfig": osc, "token": {"syncPeriod": "12h0m0s"}, **controllers},
        }
        return yaml.safe_dump(document, sort_keys=False)


@dataclass(frozen=True, slots=True)
class WorkerOsc:
    """An OSC under construction; every change gives a new one.

    Attributes:
        pool: what it is for.
        units: units by name.
        files: files by path.
        kubelet: settings of kubelet's configuration file, besides those a machine of the lab needs.
        cri: `spec.criConfig`; empty for none.
    """

    pool: WorkerPool
    units: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, Mapping[str, Any]]
    kubelet: Mapping[str, Any]
    cri: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def for_pool(cls, pool: WorkerPool) -> "WorkerOsc":
        """Return what every worker gets: the agent itself, kubelet, kernel settings; both programs if they are in images."""
        osc = cls(pool, {}, {}, {})
        if pool.images is not None:
            osc = osc.with_images(pool.images)
        osc = osc.with_file(pool.agent_config_path, pool.agent_config(), mode=0o600)
        osc = osc.with_file(CLUSTER_CA_FILE, pool.ca_pem, mode=0o640)
        osc = osc.with_file(KUBELET_CA_FILE, pool.ca_pem, mode=0o400)
        osc = osc.with_file("/etc/sysctl.d/99-k8s-general.conf", "net.core.somaxconn = 2048\n")
        own = {"filePaths": [pool.agent_config_path, CLUSTER_CA_FILE, AGENT_BINARY]}
        osc = osc.with_unit(AGENT_UNIT, content=AGENT_UNIT_CONTENT, enable=True, **own)
        kubelet = {"command": "start", "filePaths": [KUBELET_CA_FILE, KUBELET_CONFIG_FILE, KUBELET_BINARY]}
        osc = osc.with_unit(KUBELET_UNIT, content=kubelet_unit(pool), enable=True, **kubelet)
        return osc.with_unit(
            "systemd-sysctl.service", command="restart", enable=True, filePaths=["/etc/sysctl.d/99-k8s-general.conf"]
        )

    def with_file(self, path: str, data: str | bytes, mode: int | None = None, **fields: Any) -> "WorkerOsc":
        """Add or replace a file; bytes are sent in base64. Further fields: `hostName`."""
        if isinstance(data, bytes):
            inline = {"encoding": "b64", "data": base64.b64encode(data).decode()}
        else:
            inline = {"encoding": "", "data": data}
        file: dict[str, Any] = {"path": path, "content": {"inline": inline}, **fields}
        if mode is not None:
            file["permissions"] = mode
        return replace(self, files={**self.files, path: file})

    def with_image_file(
        self, path: str, image: str, file_path_in_image: str, mode: int | None = 0o755, **fields: Any
    ) -> "WorkerOsc":
        """Add or replace a file that comes out of a container image. Further fields: `hostName`."""
        content = {"imageRef": {"image": image, "filePathInImage": file_path_in_image}}
        file: dict[str, Any] = {"path": path, "content": content, **fields}
        if mode is not None:
            file["permissions"] = mode
        return replace(self, files={**self.files, path: file})

    def with_containerd(
        self, *, cgroup_driver: str = "systemd", sandbox_image: str = PAUSE_IMAGE, **fields: Any
    ) -> "WorkerOsc":
        """Configure containerd; registries stay. Further fields of the section: `plugins`."""
        registries = self.cri.get("containerd", {}).get("registries", [])
        section = {"registries": registries, "sandboxImage": sandbox_image, **fields}
        return replace(self, cri={"name": "containerd", "cgroupDriver": cgroup_driver, "containerd": section})

    def with_registry(self, registry: Mapping[str, Any]) -> "WorkerOsc":
        """Add or replace a registry: upstream, server, hosts, readinessProbe. Configures containerd if need be."""
        osc = self if self.cri else self.with_containerd()
        others = [one for one in osc.cri["containerd"]["registries"] if one["upstream"] != registry["upstream"]]
        return replace(osc, cri={**osc.cri, "containerd": {**osc.cri["containerd"], "registries": [*others, registry]}})

    def without_registry(self, upstream: str) -> "WorkerOsc":
        """Remove a registry."""
        section = self.cri["containerd"]
        left = [one for one in section["registries"] if one["upstream"] != upstream]
        return replace(self, cri={**self.cri, "containerd": {**section, "registries": left}})

    def with_images(self, images: WorkerImages) -> "WorkerOsc":
        """Let agent and kubelet come out of images, and tell containerd of the registry that has them."""
        osc = self.with_file(images.ca_file, images.ca_pem, mode=0o644).with_registry(images.registry)
        osc = osc.with_image_file(AGENT_BINARY, images.node_agent, "/gardener-node-agent")
        return osc.with_image_file(KUBELET_BINARY, images.kubelet, "/kubelet")

    def without_file(self, path: str) -> "WorkerOsc":
        """Remove a file."""
        return replace(self, files={key: file for key, file in self.files.items() if key != path})

    def with_unit(self, name: str, **fields: Any) -> "WorkerOsc":
        """Add or replace a unit; fields as in the OSC: content, command, enable, dropIns, filePaths."""
        return replace(self, units={**self.units, name: {"name": name, **fields}})

    def without_unit(self, name: str) -> "WorkerOsc":
        """Remove a unit."""
        return replace(self, units={key: unit for key, unit in self.units.items() if key != name})

    def with_kubelet(self, **settings: Any) -> "WorkerOsc":
        """Change settings of kubelet's configuration file (`maxPods=42`)."""
        return replace(self, kubelet={**self.kubelet, **settings})

    def document(self) -> dict[str, Any]:
        """Return the OSC as gardenlet strips it for the Secret."""
        configuration = yaml.safe_dump(kubelet_configuration(self.kubelet), sort_keys=False)
        complete = self.with_file(KUBELET_CONFIG_FILE, configuration, mode=0o644)
        cri = {"criConfig": self.cri} if self.cri else {}
        return {
            "apiVersion": _API_VERSION,
            "kind": "OperatingSystemConfig",
            "metadata": {},
            "spec": {
                "type": "",
                "purpose": "",
                "units": list(self.units.values()),
                "files": list(complete.files.values()),
                **cri,
            },
            "status": {},
        }

    def data(self) -> bytes:
        """Return the bytes of `osc.yaml`."""
        return yaml.safe_dump(self.document(), sort_keys=False).encode()


def osc_secret(pool: str, name: str, data: bytes) -> dict[str, Any]:
    """Return the Secret that carries an OSC: contract 5.1."""
    labels = {"gardener.cloud/role": "operating-system-config", "worker.gardener.cloud/pool": pool}
    annotations = {CHECKSUM_ANNOTATION: hashlib.sha256(data).hexdigest()}
    metadata = {"name": name, "namespace": "kube-system", "labels": labels, "annotations": annotations}
    return {"metadata": metadata, "type": "Opaque", "data": {"osc.yaml": base64.b64encode(data).decode()}}


def kubelet_unit(pool: WorkerPool) -> str:
    """Return kubelet's unit: TLS bootstrap, and the two labels by which the authorizer knows the node (Appendix D)."""
    labels = f"worker.gardener.cloud/pool={pool.name},worker.gardener.cloud/gardener-node-agent-secret-name={pool.secret_name}"
    flags = [
        "--bootstrap-kubeconfig=/var/lib/kubelet/kubeconfig-bootstrap",
        f"--config={KUBELET_CONFIG_FILE}",
        "--kubeconfig=/var/lib/kubelet/kubeconfig-real",
        f"--node-labels={labels}",
        "--runtime-cgroups=/system.slice/containerd.service",
        "--v=2",
    ]
    lines = " \\\n    ".join([KUBELET_BINARY, *flags])
    return (
        "[Unit]\nDescription=kubelet daemon\nAfter=containerd.service\nWants=containerd.service\n\n"
        f"[Service]\nRestart=always\nRestartSec=5\nExecStart={lines}\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


def kubelet_configuration(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return kubelet's configuration file for a machine of the lab.

    Eviction looks at the host's disk through the machine's, so it is off; there is no swap accounting and no DNS.
    """
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": KUBELET_CA_FILE},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "systemd",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "evictionHard": {
            "memory.available": "0%",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
        },
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "maxPods": 110,
        "nodeStatusUpdateFrequency": "10s",
        "resolvConf": "",
        "rotateCertificates": True,
        "staticPodPath": "/etc/kubernetes/manifests",
        **settings,
    }
