"""What a seed with many shoots is full of, written straight into etcd: 20,000 POSTs would take longer than the measurement.

The API server stores JSON as well as its own encoding, and its caches learn of a write from etcd's watch like of any other.
"""

import base64
import datetime as dt
import http.client
import json
import secrets
import urllib.parse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from tests.lab.controlplane import ControlPlane
from tests.lab.errors import LabError
from tests.lab.garden.identity import label_of

_BATCH = 100
"""Objects in one transaction; etcd allows 128, and 1.5 MB."""
_BATCH_BYTES = 700_000
_EXTENSIONS, _RESOURCES, _CORE = "extensions.gardener.cloud", "resources.gardener.cloud", "core.gardener.cloud"
_TOKEN = "serviceaccount.resources.gardener.cloud/"
_CERTIFICATE = "-----BEGIN CERTIFICATE-----\n" + "MIIBijCCAS+gAwIBAgIRAO" * 40 + "\n-----END CERTIFICATE-----\n"
_TEXT = "a paragraph of a profile that nobody reads, but that is there all the same. "
REQUESTED = 20
"""Secrets for which a gardenlet of this landscape requests tokens."""
FOREIGN_POLICIES = 10
"""In each namespace of a shoot, of gardener-resource-manager."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object and where etcd has it: `secrets`, or group and plural of a custom resource."""

    where: str
    kind: str
    body: dict[str, Any]

    def key(self) -> str:
        """Return the key."""
        metadata = self.body["metadata"]
        return "/".join(filter(None, ("/registry", self.where, metadata.get("namespace"), metadata["name"])))

    def value(self, now: str) -> bytes:
        """Return what the API server would have stored."""
        metadata = {**self.body["metadata"], "uid": str(uuid4()), "creationTimestamp": now, "generation": 1}
        return json.dumps({**self.body, "kind": self.kind, "metadata": metadata}).encode()


def store(plane: ControlPlane, objects: Iterable[Stored]) -> int:
    """Write objects into etcd; returns how many."""
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    parts = urllib.parse.urlsplit(plane.etcd)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    count, size, batch = 0, 0, list[dict[str, Any]]()

    def flush() -> None:
        connection.request("POST", "/v3/kv/txn", body=json.dumps({"success": batch}))
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise LabError(f"etcd: {answer.status} {text[:200]!r}")
        batch.clear()

    try:
        for one in objects:
            pair = {"key": _base64(one.key().encode()), "value": _base64(one.value(now))}
            if len(batch) == _BATCH or size + len(pair["value"]) > _BATCH_BYTES:
                flush()
                size = 0
            batch.append({"requestPut": pair})
            count, size = count + 1, size + len(pair["value"])
        if batch:
            flush()
    finally:
        connection.close()
    return count


def shoot_namespace(number: int) -> str:
    """Return the name of a shoot's namespace in the seed."""
    return f"shoot--bench--{number:04}"


def shoots(seed: str, count: int) -> Iterator[Stored]:
    """Yield Shoots of a garden, about 10 KB each, a project for every ten."""
    for number in range(count):
        metadata = {
            "name": f"{number:04}",
            "namespace": f"garden-{number // 10}",
            "labels": {label_of(seed): "true"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": _TEXT * 60},
        }
        spec = {"seedName": seed, "provider": {"type": "local", "workers": [{"name": f"w{n}"} for n in range(20)]}}
        conditions = [
            {"type": f"Condition{n}", "status": "True", "reason": "Fine", "message": _TEXT * 2} for n in range(12)
        ]
        status = {"seedName": seed, "technicalID": shoot_namespace(number), "conditions": conditions}
        body = {
            "apiVersion": f"{_CORE}/v1beta1",
            "metadata": metadata,
            "spec": {**spec, "description": _TEXT * 20},
            "status": status,
        }
        yield Stored(f"{_CORE}/shoots", "Shoot", body)


def shoot_namespaces(count: int) -> Iterator[Stored]:
    """Yield the namespaces of shoots in a seed."""
    for number in range(count):
        name = shoot_namespace(number)
        labels = {"gardener.cloud/role": "shoot", "kubernetes.io/metadata.name": name, "shoot.gardener.cloud/uid": name}
        body = {
            "apiVersion": "v1",
            "metadata": {"name": name, "labels": labels},
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        }
        yield Stored("namespaces", "Namespace", body)


def clusters(count: int) -> Iterator[Stored]:
    """Yield the Clusters of shoots: about 40 KB each, of which a few networks matter."""
    networking = {"pods": "100.96.0.0/11", "services": "100.64.0.0/13", "nodes": "10.250.0.0/16"}
    versions = [{"version": f"1.{minor}.{patch}", "text": _TEXT} for minor in range(20) for patch in range(10)]
    for number in range(count):
        shoot = {
            "apiVersion": f"{_CORE}/v1beta1",
            "kind": "Shoot",
            "metadata": {"name": f"{number:04}"},
            "spec": {"networking": networking, "description": _TEXT * 60},
        }
        spec = {
            "cloudProfile": {"kind": "CloudProfile", "spec": {"kubernetes": {"versions": versions}}},
            "seed": {"kind": "Seed", "spec": {"description": _TEXT * 60}},
            "shoot": shoot,
        }
        metadata = {"name": shoot_namespace(number)}
        body = {"apiVersion": f"{_EXTENSIONS}/v1alpha1", "metadata": metadata, "spec": spec}
        yield Stored(f"{_EXTENSIONS}/clusters", "Cluster", body)


def foreign_policies(count: int) -> Iterator[Stored]:
    """Yield network policies that others keep in the namespaces of shoots."""
    for number in range(count):
        for policy in range(FOREIGN_POLICIES):
            peers = [{"podSelector": {"matchLabels": {"app": f"component-{policy}", "role": "monitoring"}}}]
            spec = {
                "podSelector": {"matchLabels": {f"networking.resources.gardener.cloud/to-{policy}-tcp": "allowed"}},
                "egress": [{"to": peers, "ports": [{"port": 8080 + policy, "protocol": "TCP"}]}],
                "policyTypes": ["Egress"],
            }
            metadata = {
                "name": f"egress-to-{policy}-tcp",
                "namespace": shoot_namespace(number),
                "annotations": {"gardener.cloud/description": _TEXT * 2},
            }
            body = {"apiVersion": "networking.k8s.io/v1", "metadata": metadata, "spec": spec}
            yield Stored("networkpolicies", "NetworkPolicy", body)


def managed_resources(count: int) -> Iterator[Stored]:
    """Yield ManagedResources: those of the seed's own components, and fifteen of each shoot."""
    states = [{"type": f"Resources{what}", "status": "True"} for what in ("Applied", "Healthy", "Progressing")]
    places = [("garden", number, "seed") for number in range(30)]
    places += [(shoot_namespace(number), part, "") for number in range(count) for part in range(15)]
    for namespace, number, resource_class in places:
        refs = [{"kind": "ConfigMap", "name": f"c{n}", "namespace": "kube-system"} for n in range(10)]
        body = {
            "apiVersion": f"{_RESOURCES}/v1alpha1",
            "metadata": {"name": f"resource-{number}", "namespace": namespace},
            "spec": {"class": resource_class, "secretRefs": [{"name": f"s{number}"}]},
            "status": {"observedGeneration": 1, "conditions": states, "resources": refs},
        }
        yield Stored(f"{_RESOURCES}/managedresources", "ManagedResource", body)


def seed_secrets(count: int, shoots_in_seed: int) -> Iterator[Stored]:
    """Yield Secrets of a seed: those of shoots, a fifth of them with requests for tokens of the shoot, and `REQUESTED` for us."""
    for number in range(min(REQUESTED, count)):
        annotations = {f"{_TOKEN}name": f"extension-{number}", f"{_TOKEN}token-expiration-duration": "12h"}
        labels = {"resources.gardener.cloud/purpose": "token-requestor", "resources.gardener.cloud/class": "garden"}
        yield secret("garden", f"requested-{number}", {}, labels, annotations)
    for number in range(REQUESTED, count):
        labels = {"name": "certificate", "managed-by": "secrets-manager"}
        if number % 5 == 0:
            labels = {"resources.gardener.cloud/purpose": "token-requestor", "resources.gardener.cloud/class": "shoot"}
        data = {"ca.crt": _CERTIFICATE, "tls.crt": _CERTIFICATE, "tls.key": secrets.token_hex(120)}
        yield secret(shoot_namespace(number % max(1, shoots_in_seed)), f"secret-{number}", data, labels)


def garden_secrets(count: int) -> Iterator[Stored]:
    """Yield Secrets of a garden: credentials and kubeconfigs of projects, none of them ours."""
    for number in range(count):
        data = {"kubeconfig": _CERTIFICATE, "password": secrets.token_hex(16)}
        yield secret(f"garden-{number % 25}", f"{number}.kubeconfig", data, {"gardener.cloud/role": "kubeconfig"})


def secret(
    namespace: str,
    name: str,
    data: dict[str, str],
    labels: dict[str, str],
    annotations: dict[str, str] | None = None,
) -> Stored:
    """Return a Secret."""
    metadata = {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations or {}}
    encoded = {key: _base64(value.encode()) for key, value in data.items()}
    return Stored("secrets", "Secret", {"apiVersion": "v1", "metadata": metadata, "data": encoded, "type": "Opaque"})


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
