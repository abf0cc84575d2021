"""etcd, kube-apiserver and, for a whole lab, kube-controller-manager, with the authorization chain that Gardener has.

Two uses. *Plain*: etcd and the API server on free ports of 127.0.0.1, ready in about three seconds, for tests of client
and watch code. *In a lab*: the same inside the lab's network namespace, with the webhook that decides for node agents.

etcd runs without fsync: what a lab stores is worth nothing after a power cut.
"""

import base64
import json
import os
import random
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.lab import pki
from tests.lab.api import Api, Credentials, wait_for
from tests.lab.binaries import Binaries, find_binaries
from tests.lab.errors import LabError
from tests.lab.host_limits import raise_limits
from tests.lab.processes import LabProcess, clean_environment, find, spawn, tail
from tests.lab.state import Ledger

_START_DEADLINE_SECONDS = 60.0
_AUTHORIZATION = "apiserver.config.k8s.io/v1"
NODE_AGENTS_GROUP = "gardener.cloud:node-agents"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a control plane listens.

    Attributes:
        address: IP address under which we reach the API server.
        inside: IP address under which machines reach it; None where there are none.
        port: its port; 0 takes a free one.
        etcd_port: etcd's client port, the next one is for peers; 0 takes free ones.
        netns: network namespace; None for the host's.
        names: further host names and IP addresses for the server certificate.
    """

    address: str = "127.0.0.1"
    inside: str | None = None
    port: int = 0
    etcd_port: int = 0
    netns: str | None = None
    names: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Webhook:
    """The authorizer that is asked last.

    Attributes:
        url: where it is.
        name: of the authorizer.
        condition: CEL over the request; it is asked only about those that match.
    """

    url: str
    name: str = "node-agent-authorizer"
    condition: str = f"'{NODE_AGENTS_GROUP}' in request.groups"


@dataclass(slots=True)
class _Ports:
    secure: int
    etcd: int
    peer: int


@dataclass(slots=True)
class ControlPlane:
    """An API server with its etcd; every part can be stopped, killed, frozen and started again.

    Attributes:
        ledger: the lab's record; its folder holds keys, data and logs.
        binaries: programs to use; None finds them.
        placement: where it listens.
        webhook: authorizer for agents; None leaves Node and RBAC.
        controller_manager: whether kube-controller-manager runs, too.
        flags: flags of kube-apiserver, added or replaced (`{"--min-request-timeout": "5"}`).
        name: tells it from another control plane of the same ledger.
        audited: groups of users of whose requests the audit log has all.
        transitions: from when to when kube-apiserver was not ready yet, or was ending.
        objects: what exists once it has started, as (collection, object); by default what lets kubelets bootstrap.
    """

    ledger: Ledger
    binaries: Binaries | None = None
    placement: Placement = field(default_factory=Placement)
    webhook: Webhook | None = None
    controller_manager: bool = False
    flags: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    audited: Sequence[str] = (NODE_AGENTS_GROUP, "system:bootstrappers")
    objects: Sequence[tuple[str, dict[str, Any]]] = field(default_factory=lambda: bootstrap_objects())
    _ports: _Ports | None = None
    _api: Api | None = None
    transitions: list[tuple[datetime, datetime]] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        """Folder with keys, data, logs and kubeconfigs."""
        return self.ledger.directory / (self.name or "control-plane")

    @property
    def pki_folder(self) -> Path:
        """Folder with the CA and the certificates."""
        return self.directory / "pki"

    @property
    def server(self) -> str:
        """URL of the API server, for us."""
        return f"https://{self.placement.address}:{self._saved_ports().secure}"

    @property
    def port(self) -> int:
        """Port of the API server."""
        return self._saved_ports().secure

    @property
    def etcd(self) -> str:
        """URL of etcd, without TLS, on this host."""
        return f"http://127.0.0.1:{self._saved_ports().etcd}"

    @property
    def server_inside(self) -> str:
        """URL of the API server, for machines."""
        return f"https://{self.placement.inside or self.placement.address}:{self._saved_ports().secure}"

    @property
    def ca_pem(self) -> bytes:
        """Certificate of the CA that signs servers and clients alike."""
        return (self.pki_folder / "ca.crt").read_bytes()

    @property
    def ca_path(self) -> Path:
        """File with that certificate."""
        return self.pki_folder / "ca.crt"

    @property
    def admin(self) -> Api:
        """Client with all rights."""
        if self._api is None:
            self._api = Api(self.server, self.admin_credentials)
        return self._api

    @property
    def admin_credentials(self) -> Credentials:
        """Files of the administrator."""
        return Credentials(self.ca_path, self.pki_folder / "admin.crt", self.pki_folder / "admin.key")

    def start(self) -> None:
        """Start all parts and wait until the API server is ready and `objects` exist."""
        self.prepare()
        self.start_etcd()
        self.start_apiserver()
        for path, body in self.objects:
            self.admin.ensure(path, body)
        if self.controller_manager:
            self.start_controller_manager()

    def stop(self) -> None:
        """Stop all parts; keys, data and logs stay until the ledger is removed."""
        for name in ("kube-controller-manager", "kube-apiserver", "etcd"):
            process = find(self.ledger, self._process(name))
            if process is not None:
                process.kill()

    def start_etcd(self) -> None:
        """Start etcd on its old data."""
        ports = self._saved_ports()
        client, peer = f"http://127.0.0.1:{ports.etcd}", f"http://127.0.0.1:{ports.peer}"
        argv = ["--data-dir", str(self.directory / "etcd"), "--unsafe-no-fsync", "--log-level", "warn"]
        argv += ["--listen-client-urls", client, "--advertise-client-urls", client]
        argv += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        argv += ["--initial-cluster", f"default={peer}"]
        self._spawn("etcd", self._binaries().etcd, argv)

    def start_apiserver(self, *, wait: bool = True) -> None:
        """Start kube-apiserver, on the port it had, and wait until it is ready."""
        flags = self._apiserver_flags() | dict(self.flags)
        begun = datetime.now(UTC)
        process = self._spawn("kube-apiserver", self._binaries().apiserver, [f"{k}={v}" for k, v in flags.items()])
        if wait:
            self.wait_ready(process)
            self.transitions.append((begun, datetime.now(UTC)))
            self._wake_controller_manager()

    def was_in_transition(self, moment: datetime) -> bool:
        """Whether the API server refused then what is allowed: it had not read the roles yet, or ended and its authorizer could read nothing."""
        return any(begun <= moment <= ended for begun, ended in self.transitions)

    def wait_ready(self, process: LabProcess | None = None, *, timeout: float = _START_DEADLINE_SECONDS) -> None:
        """Wait until the API server answers that it is ready."""

        def ready() -> bool:
            if process is not None and not process.alive():
                raise RuntimeError("kube-apiserver ended; see " + str(self.log_path("kube-apiserver")))
            return self.admin.ready()

        try:
            wait_for(ready, timeout=timeout, what="kube-apiserver to be ready")
        except RuntimeError as error:
            raise LabError(f"{error}: {tail(self.log_path('kube-apiserver'))}") from None

    def stop_apiserver(self) -> None:
        """Stop kube-apiserver as an upgrade would: SIGTERM, open watches are closed."""
        begun = datetime.now(UTC)
        self.process("kube-apiserver").stop()
        self.transitions.append((begun, datetime.now(UTC)))

    def kill_apiserver(self) -> None:
        """End kube-apiserver without a goodbye: SIGKILL."""
        self.process("kube-apiserver").kill()

    def freeze_apiserver(self) -> None:
        """Keep its connections open and answer nothing: SIGSTOP."""
        self.process("kube-apiserver").freeze()

    def thaw_apiserver(self) -> None:
        """Go on after a freeze."""
        self.process("kube-apiserver").thaw()

    def start_controller_manager(self) -> None:
        """Start kube-controller-manager: signers, approval for kubelets, bootstrap tokens, node lifecycle."""
        folder = self.pki_folder
        kubeconfig = self.directory / "controller-manager.kubeconfig"
        self.kubeconfig(kubeconfig, server=f"https://127.0.0.1:{self._saved_ports().secure}")
        argv = [f"--kubeconfig={kubeconfig}", f"--root-ca-file={folder / 'ca.crt'}", "--leader-elect=false"]
        argv += [f"--service-account-private-key-file={folder / 'sa.key'}", "--use-service-account-credentials"]
        argv += [f"--cluster-signing-cert-file={folder / 'ca.crt'}", f"--cluster-signing-key-file={folder / 'ca.key'}"]
        # Tests remove namespaces faster than anybody else: with its own limit of 20 requests a second they queue for minutes.
        argv += [
            "--controllers=*,bootstrapsigner,tokencleaner",
            "--secure-port=0",
            "--kube-api-qps=200",
            "--kube-api-burst=300",
        ]
        # It gives up when the API server is away while it starts; a kubelet would start it again.
        program = str(self._binaries().controller_manager)
        loop = ["-c", 'while :; do setpriv --pdeathsig KILL "$@"; sleep 0.5; done', "sh", program, *argv]
        self._spawn("kube-controller-manager", Path("/bin/sh"), loop)

    def _wake_controller_manager(self) -> None:
        """Start it anew where it runs: after an outage it would not look for up to half a minute, and whoever comes next wait for it."""
        process = find(self.ledger, self._process("kube-controller-manager"))
        if process is not None:
            process.kill()
            self.start_controller_manager()

    def process(self, name: str) -> LabProcess:
        """Return a running part: etcd, kube-apiserver, kube-controller-manager.

        Raises:
            LabError: it does not run.
        """
        process = find(self.ledger, self._process(name))
        if process is None:
            raise LabError(f"{self._process(name)} does not run")
        return process

    def log_path(self, name: str) -> Path:
        """Log file of a part."""
        return self.directory / f"{name}.log"

    @property
    def audit_path(self) -> Path:
        """Audit log: one JSON line per request of node agents and of bootstrapping machines, and about Nodes."""
        return self.directory / "audit.jsonl"

    def issue_client_certificate(
        self, common_name: str, organisations: Sequence[str], **validity: timedelta
    ) -> tuple[bytes, bytes]:
        """Return certificate and key, both PEM, for a user and its groups; `age` and `validity` as in `issue_client`."""
        return pki.Authority.load(self.pki_folder).issue_client(common_name, organisations, **validity)

    def kubeconfig(self, path: Path, *, server: str | None = None, user: tuple[bytes, bytes] | None = None) -> Path:
        """Write a kubeconfig, the administrator's by default; everything in it is inline.

        Args:
            path: file to write, 0600.
            server: URL; None for `server`.
            user: certificate and key, both PEM; None for the administrator's.
        """
        certificate, key = user or tuple((self.pki_folder / name).read_bytes() for name in ("admin.crt", "admin.key"))
        text = json.dumps(kubeconfig_object(server or self.server, self.ca_pem, certificate, key), indent=1)
        pki.write_secret(path, text.encode())
        return path

    def issue_server_certificate(self, name: str, addresses: Sequence[str]) -> tuple[Path, Path]:
        """Write certificate and key for a server beside the API server; returns their paths."""
        self._save_pair(name, pki.Authority.load(self.pki_folder).issue_server(name, addresses))
        return self.pki_folder / f"{name}.crt", self.pki_folder / f"{name}.key"

    def prepare(self) -> None:
        """Make keys, certificates and configuration files, unless they exist."""
        self.ledger.create()
        raise_limits(self.ledger)
        self.pki_folder.mkdir(parents=True, exist_ok=True)
        if (self.pki_folder / "ca.crt").exists():
            return
        authority = pki.Authority.create("lab-ca")
        authority.save(self.pki_folder)
        place = self.placement
        names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "127.0.0.1", "10.0.0.1"]
        names += [name for name in (place.address, place.inside, *place.names) if name and name not in names]
        self._save_pair("apiserver", authority.issue_server("kube-apiserver", names))
        self._save_pair("admin", authority.issue_client("admin", ["system:masters"]))
        key = pki.new_key()
        pki.write_secret(self.pki_folder / "sa.key", pki.private_key_pem(key))
        (self.pki_folder / "sa.pub").write_bytes(pki.public_key_pem(key))
        (self.directory / "audit-policy.json").write_text(json.dumps(audit_policy(self.audited)))
        if self.webhook is not None:
            hook = kubeconfig_object(self.webhook.url, self.ca_pem, *self._pair("admin"))
            pki.write_secret(self.directory / "authorizer.kubeconfig", json.dumps(hook).encode())
            configuration = authorization_configuration(self.webhook, self.directory / "authorizer.kubeconfig")
            (self.directory / "authorization.json").write_text(json.dumps(configuration))

    def _save_pair(self, name: str, pair: tuple[bytes, bytes]) -> None:
        (self.pki_folder / f"{name}.crt").write_bytes(pair[0])
        pki.write_secret(self.pki_folder / f"{name}.key", pair[1])

    def _pair(self, name: str) -> tuple[bytes, bytes]:
        return (self.pki_folder / f"{name}.crt").read_bytes(), (self.pki_folder / f"{name}.key").read_bytes()

    def _apiserver_flags(self) -> dict[str, str]:
        ports, folder = self._saved_ports(), self.pki_folder
        flags = {
            "--etcd-servers": f"http://127.0.0.1:{ports.etcd}",
            "--bind-address": "0.0.0.0" if self.placement.netns else self.placement.address,
            "--advertise-address": self.placement.inside or "",
            "--secure-port": str(ports.secure),
            "--cert-dir": str(self.directory / "apiserver"),
            "--tls-cert-file": str(folder / "apiserver.crt"),
            "--tls-private-key-file": str(folder / "apiserver.key"),
            "--client-ca-file": str(folder / "ca.crt"),
            "--service-account-key-file": str(folder / "sa.pub"),
            "--service-account-signing-key-file": str(folder / "sa.key"),
            "--service-account-issuer": "https://kubernetes.default.svc",
            "--service-cluster-ip-range": "10.0.0.0/24",
            "--enable-bootstrap-token-auth": "true",
            "--allow-privileged": "true",
            "--kubelet-client-certificate": str(folder / "admin.crt"),
            "--kubelet-client-key": str(folder / "admin.key"),
            "--shutdown-watch-termination-grace-period": "1s",  # else a stop waits a minute for watches to end
            "--audit-policy-file": str(self.directory / "audit-policy.json"),
            "--audit-log-path": str(self.audit_path),
        }
        # A lone API server on the loopback must not publish that address as an endpoint; it refuses to.
        if self.placement.inside is None:
            flags["--endpoint-reconciler-type"] = "none"
            del flags["--advertise-address"]
        if self.webhook is None:
            flags["--authorization-mode"] = "Node,RBAC"
        else:
            flags["--authorization-config"] = str(self.directory / "authorization.json")
        return flags

    def _spawn(self, name: str, program: Path, argv: Sequence[str]) -> LabProcess:
        return spawn(
            self.ledger,
            self._process(name),
            [str(program), *argv],
            log=self.log_path(name),
            netns=self.placement.netns,
            env=clean_environment(),
        )

    def _process(self, part: str) -> str:
        return f"{self.name}-{part}" if self.name else part

    def _binaries(self) -> Binaries:
        if self.binaries is None:
            self.binaries = find_binaries()
        return self.binaries

    def _saved_ports(self) -> _Ports:
        """Return the ports: chosen once, kept over restarts and for other processes that attach to this lab."""
        if self._ports is None:
            path = self.directory / "ports.json"
            if path.exists():
                self._ports = _Ports(**json.loads(path.read_text()))
            else:
                free = free_ports(3)
                etcd = self.placement.etcd_port
                self._ports = _Ports(self.placement.port or free[0], etcd or free[1], etcd + 1 if etcd else free[2])
                self.directory.mkdir(parents=True, exist_ok=True)
                path.write_text(
                    json.dumps({"secure": self._ports.secure, "etcd": self._ports.etcd, "peer": self._ports.peer})
                )
        return self._ports


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody listens on, below the range the kernel gives to clients."""
    found: list[int] = []
    generator = random.Random(f"{os.getpid()}-{time.monotonic_ns()}")
    while len(found) < count:
        port = generator.randrange(20000, 32000)
        with socket.socket() as probe:
            if port not in found and probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
    return found


def kubeconfig_object(server: str, ca: bytes, certificate: bytes, key: bytes) -> dict[str, Any]:
    """Return a kubeconfig with everything inline; JSON is YAML."""

    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {"server": server, "certificate-authority-data": text(ca)}}],
        "users": [
            {"name": "lab", "user": {"client-certificate-data": text(certificate), "client-key-data": text(key)}}
        ],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        "current-context": "lab",
    }


def authorization_configuration(hook: Webhook, kubeconfig: Path) -> dict[str, Any]:
    """Return the chain of Gardener's API servers: Node, RBAC, then the webhook for agents; contract 14.1 and 15.1."""
    webhook = {
        "timeout": "10s",
        "authorizedTTL": "1ns",
        "unauthorizedTTL": "1ns",
        "subjectAccessReviewVersion": "v1",
        "matchConditionSubjectAccessReviewVersion": "v1",
        "failurePolicy": "Deny",
        "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": str(kubeconfig)},
        "matchConditions": [{"expression": hook.condition}],
    }
    authorizers = [
        {"type": "Node", "name": "node"},
        {"type": "RBAC", "name": "rbac"},
        {"type": "Webhook", "name": hook.name, "webhook": webhook},
    ]
    return {"apiVersion": _AUTHORIZATION, "kind": "AuthorizationConfiguration", "authorizers": authorizers}


def audit_policy(groups: Sequence[str]) -> dict[str, Any]:
    """Return what is written down: all that users of some groups ask, and the life of Nodes."""
    about_nodes = {"group": "", "resources": ["nodes"]}
    rules = [
        {"level": "Metadata", "userGroups": list(groups)},
        {"level": "Metadata", "verbs": ["create", "delete"], "resources": [about_nodes]},
        {"level": "None"},
    ]
    return {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}


def bootstrap_objects() -> list[tuple[str, dict[str, Any]]]:
    """Return what lets kubelets bootstrap, as (collection, object); the node agents' group gets nothing. Contract 10.2."""
    grants = [
        ("node-bootstrapper", "system:bootstrappers", "system:node-bootstrapper"),
        (
            "node-client-approval",
            "system:bootstrappers",
            "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        ),
        (
            "node-renewal-approval",
            "system:nodes",
            "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        ),
    ]
    api = "rbac.authorization.k8s.io"
    return [
        (
            f"/apis/{api}/v1/clusterrolebindings",
            {
                "metadata": {"name": f"lab:{name}"},
                "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": api, "kind": "Group", "name": group}],
            },
        )
        for name, group, role in grants
    ]


def plain_control_plane(name: str, *, flags: Mapping[str, str] | None = None, root: Path | None = None) -> ControlPlane:
    """Return a control plane of etcd and API server on the host's loopback; not started yet."""
    ledger = Ledger(name, root=root)
    ledger.create()
    return ControlPlane(ledger, flags=flags or {})
