"""Real container registries in the lab's network: Debian's `docker-registry`, with TLS by a CA of its own, or plain.

Both serve the same storage, so that an image is pushed once. Machines reach them under one name and tell them apart by
port; the host, which pushes, reaches them by the lab's address.
"""

import http.client
import json
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import yaml

from tests.lab.api import wait_for
from tests.lab.errors import LabError
from tests.lab.network import REGISTRY_NAME, SERVER_ADDRESS, LabNetwork
from tests.lab.oci import Blob, Image
from tests.lab.packages import program
from tests.lab.pki import Authority, write_secret
from tests.lab.processes import LabProcess, clean_environment, find, spawn
from tests.lab.state import Ledger

Kind = Literal["tls", "plain"]
CA_FILE = "/etc/ssl/certs/lab-registry-ca.crt"
"""Where machines find the CA; an OSC brings it."""
_PORTS: Mapping[Kind, int] = {"tls": 5000, "plain": 5001}
_TIMEOUT_SECONDS = 60.0
_FILE = "image-file"


class Registry:
    """One registry; the constructor attaches, `start` starts it unless it runs.

    Attributes:
        kind: `tls` or `plain`.
        port: where it listens.
        ledger: record of its lab.
    """

    def __init__(self, ledger: Ledger, network: LabNetwork, kind: Kind) -> None:
        self.ledger = ledger
        self._network = network
        self.kind = kind
        self.port = _PORTS[kind]

    @property
    def host(self) -> str:
        """Name and port, as image references and `certs.d` have it."""
        return f"{REGISTRY_NAME}:{self.port}"

    @property
    def netns(self) -> str:
        """Network namespace in which it runs."""
        return self._network.netns

    @property
    def url(self) -> str:
        """Where machines reach it."""
        return f"{'https' if self.kind == 'tls' else 'http'}://{self.host}"

    @property
    def ca_pem(self) -> bytes:
        """The CA that signed its certificate."""
        return (self._folder / "ca.crt").read_bytes()

    @property
    def _folder(self) -> Path:
        return self.ledger.directory / "registry"

    @property
    def _log(self) -> Path:
        return self.ledger.directory / f"registry-{self.kind}.log"

    @property
    def _process(self) -> LabProcess | None:
        return find(self.ledger, f"registry-{self.kind}")

    def start(self) -> None:
        """Start it and wait until it answers."""
        if self._process is not None:
            return
        binary = program("docker-registry")
        if binary is None:
            raise LabError("docker-registry is not on this host; run: python -m tests.lab prepare")
        self._write_certificates()
        configuration = self._folder / f"{self.kind}.yaml"
        configuration.write_text(yaml.safe_dump(self._configuration()), encoding="utf-8")
        spawn(
            self.ledger,
            f"registry-{self.kind}",
            [str(binary), "serve", str(configuration)],
            log=self._log,
            netns=self.netns,
            env=clean_environment(OTEL_TRACES_EXPORTER="none"),
        )
        wait_for(self._answers, timeout=20, what=f"the {self.kind} registry to answer", interval=0.02)

    def stop(self) -> None:
        """End it: connections are refused from now on; what was pushed stays."""
        if (process := self._process) is not None:
            process.kill()

    def freeze(self) -> None:
        """Let it accept connections and never answer."""
        if (process := self._process) is not None:
            process.freeze()

    def thaw(self) -> None:
        """Let it go on after a freeze."""
        if (process := self._process) is not None:
            process.thaw()

    def push(self, image: Image, repository: str, tag: str = "latest") -> str:
        """Push an image; returns its reference with tag and digest, as Gardener's image vector has them."""
        connection = self._connect()
        try:
            for blob in image.blobs:
                _push_blob(connection, repository, blob)
            path = f"/v2/{repository}/manifests/{tag}"
            _request(
                connection, "PUT", path, image.manifest.content, {"Content-Type": image.manifest.media_type}, expect=201
            )
        finally:
            connection.close()
        reference = f"{self.host}/{repository}:{tag}@{image.manifest.digest}"
        for file, digest in image.files.items():
            self.ledger.record(_FILE, image=reference, file=file, sha256=digest)
        return reference

    def served(self, repository: str) -> list[str]:
        """Return the blobs and manifests of a repository that were sent to somebody, oldest first, by their digest or tag."""
        found = []
        for line in self._log.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):
                entry = json.loads(line)
                uri = str(entry.get("http.request.uri", ""))
                served = entry.get("msg") == "response completed" and entry.get("http.request.method") == "GET"
                if served and uri.startswith(f"/v2/{repository}/"):
                    found.append(uri.rpartition("/")[2])
        return found

    def hosts_entry(self) -> dict[str, Any]:
        """Return the registry as an OSC lists it: `spec.criConfig.containerd.registries`."""
        host: dict[str, Any] = {"url": self.url, "capabilities": ["pull", "resolve"]}
        if self.kind == "tls":
            host["caCerts"] = [CA_FILE]
        return {"upstream": self.host, "server": self.url, "hosts": [host]}

    def _configuration(self) -> dict[str, Any]:
        listen: dict[str, Any] = {"addr": f":{self.port}", "relativeurls": True}
        if self.kind == "tls":
            listen["tls"] = {"certificate": str(self._folder / "tls.crt"), "key": str(self._folder / "tls.key")}
        return {
            "version": "0.1",
            "log": {"level": "info", "formatter": "json", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self._folder / "storage")}, "delete": {"enabled": True}},
            "http": listen,
        }

    def _write_certificates(self) -> None:
        self._folder.mkdir(exist_ok=True)
        if (self._folder / "tls.key").exists():
            return
        authority = Authority.create("lab-registry-ca")
        names = [REGISTRY_NAME, SERVER_ADDRESS, self._network.host_side_address]
        certificate, key = authority.issue_server("registry", names)
        (self._folder / "ca.crt").write_bytes(authority.certificate_pem)
        (self._folder / "tls.crt").write_bytes(certificate)
        write_secret(self._folder / "tls.key", key)

    def _connect(self) -> http.client.HTTPConnection:
        address = self._network.host_side_address
        if self.kind == "plain":
            return http.client.HTTPConnection(address, self.port, timeout=_TIMEOUT_SECONDS)
        context = ssl.create_default_context(cafile=str(self._folder / "ca.crt"))
        return http.client.HTTPSConnection(address, self.port, timeout=_TIMEOUT_SECONDS, context=context)

    def _answers(self) -> bool:
        connection = self._connect()
        try:
            connection.request("GET", "/v2/")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


def published_digest(ledger: Ledger, image: str, file: str) -> str:
    """Return the SHA-256 of a file in an image that was pushed to one of a lab's registries.

    Raises:
        LabError: the lab has no such image, or no such file in it.
    """
    for entry in reversed(ledger.entries(_FILE)):
        if (entry["image"], entry["file"]) == (image, file):
            return str(entry["sha256"])
    raise LabError(f"no image {image!r} with a file {file!r} was pushed")


def _push_blob(connection: http.client.HTTPConnection, repository: str, blob: Blob) -> None:
    if _request(connection, "HEAD", f"/v2/{repository}/blobs/{blob.digest}", expect=None).status == 200:
        return
    started = _request(connection, "POST", f"/v2/{repository}/blobs/uploads/", expect=202)
    place = started.headers["Location"]
    separator = "&" if "?" in place else "?"
    headers = {"Content-Type": "application/octet-stream"}
    _request(connection, "PUT", f"{place}{separator}digest={blob.digest}", blob.content, headers, expect=201)


def _request(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    expect: int | None,
) -> http.client.HTTPResponse:
    connection.request(method, path, body=body, headers=dict(headers or {}))
    response = connection.getresponse()
    text = response.read()
    if expect is not None and response.status != expect:
        raise LabError(f"registry: {method} {path}: {response.status} {text[:300].decode(errors='replace')}")
    return response
