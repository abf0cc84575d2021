"""The OSC documents that the lab publishes."""

import base64
import hashlib
from dataclasses import replace
from typing import Any

import yaml

from tests.lab.worker_osc import AGENT_UNIT_CONTENT, WorkerImages, WorkerOsc, WorkerPool, osc_secret

_POOL = WorkerPool("p", "https://10.200.0.1:6443", "CA", "v1.150.0", "v1.34.4")


def _by_path(osc: WorkerOsc) -> dict[str, Any]:
    return {file["path"]: file for file in osc.document()["spec"]["files"]}


def _by_name(osc: WorkerOsc) -> dict[str, Any]:
    return {unit["name"]: unit for unit in osc.document()["spec"]["units"]}


def test_agents_unit_has_the_bytes_of_the_contract() -> None:
    """Appendix D: fourteen lines, the fourth and the twelfth empty, no line feed after the last."""
    lines = AGENT_UNIT_CONTENT.split("\n")
    assert len(lines) == 14
    assert (lines[3], lines[11], lines[13]) == ("", "", "WantedBy=multi-user.target")
    assert lines[6] == "ExecStart=/opt/bin/gardener-node-agent --config-dir=/var/lib/gardener-node-agent"


def test_worker_gets_agent_kubelet_and_kernel_settings() -> None:
    """Section 5.5: the agent's unit with its three paths, kubelet with its flags, sysctl restarted."""
    osc = WorkerOsc.for_pool(_POOL)
    units, files = _by_name(osc), _by_path(osc)
    assert units["gardener-node-agent.service"]["filePaths"] == [
        "/var/lib/gardener-node-agent/config-v1.150.0.yaml",
        "/var/lib/gardener-node-agent/cluster-ca.crt",
        "/opt/bin/gardener-node-agent",
    ]
    kubelet = units["kubelet.service"]["content"]
    for flag in (
        "--bootstrap-kubeconfig=/var/lib/kubelet/kubeconfig-bootstrap",
        "--kubeconfig=/var/lib/kubelet/kubeconfig-real",
        "--config=/var/lib/kubelet/config/kubelet",
        f"worker.gardener.cloud/gardener-node-agent-secret-name={_POOL.secret_name}",
    ):
        assert flag in kubelet
    assert set(units["kubelet.service"]["filePaths"]) - set(files) == {"/opt/bin/kubelet"}
    assert units["systemd-sysctl.service"]["command"] == "restart"


def test_agents_config_names_the_secret_and_the_ca_file() -> None:
    """Section 2: what user data brings and what the OSC writes are the same bytes."""
    config = yaml.safe_load(_POOL.agent_config())
    assert config["controllers"]["operatingSystemConfig"]["secretName"] == _POOL.secret_name
    assert config["apiServer"] == {
        "server": "https://10.200.0.1:6443",
        "caFile": "/var/lib/gardener-node-agent/cluster-ca.crt",
    }
    written = _by_path(WorkerOsc.for_pool(_POOL))["/var/lib/gardener-node-agent/config-v1.150.0.yaml"]
    assert written["content"]["inline"]["data"] == _POOL.agent_config()
    assert written["permissions"] == 0o600


def test_changes_give_new_documents() -> None:
    """A builder is never changed; adding twice replaces, removing removes."""
    osc = WorkerOsc.for_pool(_POOL)
    changed = (
        osc.with_file("/a", "1")
        .with_file("/a", b"\x00", mode=0o640)
        .with_unit("x.service", content="c")
        .with_kubelet(maxPods=7)
    )
    assert "/a" not in _by_path(osc)
    file = _by_path(changed)["/a"]
    assert file["content"]["inline"] == {"encoding": "b64", "data": base64.b64encode(b"\x00").decode()}
    assert file["permissions"] == 0o640
    kubelet = yaml.safe_load(_by_path(changed)["/var/lib/kubelet/config/kubelet"]["content"]["inline"]["data"])
    assert kubelet["maxPods"] == 7
    assert "/a" not in _by_path(changed.without_file("/a"))
    assert "x.service" not in _by_name(changed.without_unit("x.service"))


def test_secret_carries_labels_and_checksum() -> None:
    """Section 5.1: two labels, the SHA-256 of the bytes as annotation, the data key osc.yaml."""
    data = WorkerOsc.for_pool(_POOL).data()
    secret = osc_secret("p", "name", data)
    assert base64.b64decode(secret["data"]["osc.yaml"]) == data
    assert secret["metadata"]["annotations"] == {"checksum/data-script": hashlib.sha256(data).hexdigest()}
    assert secret["metadata"]["labels"] == {
        "gardener.cloud/role": "operating-system-config",
        "worker.gardener.cloud/pool": "p",
    }
    assert secret["metadata"]["namespace"] == "kube-system"


_IMAGES = WorkerImages(
    node_agent="r.lab:5000/agent:v1@sha256:1",
    kubelet="r.lab:5000/hyperkube:v1@sha256:2",
    registry={"upstream": "r.lab:5000", "server": "https://r.lab:5000", "hosts": []},
    ca_file="/etc/ssl/ca.crt",
    ca_pem="CA",
)


def test_programs_come_out_of_images() -> None:
    """Section 5.3, 5.5: a pool with images gets both programs by imageRef, 0755, and the registry that has them."""
    osc = WorkerOsc.for_pool(replace(_POOL, images=_IMAGES))
    files, cri = _by_path(osc), osc.document()["spec"]["criConfig"]
    reference = {"image": "r.lab:5000/agent:v1@sha256:1", "filePathInImage": "/gardener-node-agent"}
    assert files["/opt/bin/gardener-node-agent"]["content"] == {"imageRef": reference}
    assert files["/opt/bin/kubelet"]["content"]["imageRef"]["filePathInImage"] == "/kubelet"
    assert {files[path]["permissions"] for path in ("/opt/bin/kubelet", "/opt/bin/gardener-node-agent")} == {0o755}
    assert files["/etc/ssl/ca.crt"]["content"]["inline"]["data"] == "CA"
    assert (cri["name"], cri["cgroupDriver"]) == ("containerd", "systemd")
    assert cri["containerd"]["registries"] == [_IMAGES.registry]
    assert "criConfig" not in WorkerOsc.for_pool(_POOL).document()["spec"]


def test_registries_are_added_replaced_and_removed_by_upstream() -> None:
    """Section 5.3: upstreams are unique; configuring containerd anew keeps them."""
    first, second = {"upstream": "a", "server": "1"}, {"upstream": "b"}
    osc = WorkerOsc.for_pool(_POOL).with_registry(first).with_registry(second).with_registry({**first, "server": "2"})
    assert [one["upstream"] for one in osc.cri["containerd"]["registries"]] == ["b", "a"]
    assert osc.with_containerd(plugins=[]).cri["containerd"]["registries"] == osc.cri["containerd"]["registries"]
    assert osc.without_registry("b").cri["containerd"]["registries"] == [{"upstream": "a", "server": "2"}]
