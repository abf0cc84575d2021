"""`diagnose` on broken machines: each gets the right first cause and one next step, over real TCP, TLS and HTTP."""

import base64
import json
import ssl
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography.x509.oid import ExtendedKeyUsageOID

from agents.core.clock import SystemClock
from agents.inspection.output import Style
from agents.kube import kubeconfig
from agents.kube.kubeconfig import ClusterAccess, Credentials
from nodeagent.inspection import bundle, diagnose, state, status
from nodeagent.inspection.diagnose import Diagnosis, LinkName
from nodeagent.inspection.examination import Examined, examine
from nodeagent.inspection.probes import Answer, Answers
from nodeagent.inspection.status import Certificate
from nodeagent.paths import Paths
from systemd.states import UnitState
from tests.lab.pki import Authority
from tests.unit.nodeagent.test_config import MINIMAL

OSC = {"kind": "OperatingSystemConfig", "spec": {"files": [{"path": "/etc/a", "content": {"inline": {"data": "x"}}}]}}
RUNNING = UnitState("gardener-node-agent.service", "loaded", "active", "running")
WELL = Answers(
    agent=Answer(RUNNING),
    lease_age=Answer(3.0),
    containerd=Answer("1.7.24"),
    kubelet=Answer("ok"),
    failed_units=Answer(()),
    drift=Answer(()),
)


@pytest.fixture(scope="module")
def authority() -> Authority:
    """The cluster's CA."""
    return Authority.create("cluster")


@dataclass
class Machine:
    """A machine that is well, below a folder, and its API server.

    Attributes:
        answer: what the API server says to a request for the Secret.
        ahead: by how much its clock is ahead of ours.
        server_certificate: certificate and key of the API server.
        plain: whether it speaks no TLS.
        server: URL, where it is not the real one.
    """

    root: Path
    authority: Authority
    answer: web.Response
    server_certificate: tuple[bytes, bytes]
    ahead: timedelta = timedelta(0)
    plain: bool = False
    server: str = ""
    answers: Answers = WELL

    @property
    def paths(self) -> Paths:
        """Where its files are."""
        return Paths(root=self.root)

    def place(self, path: Path, content: bytes) -> None:
        """Write a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def join(self, *, validity: timedelta = timedelta(days=30)) -> None:
        """Write the client certificate."""
        certificate, key = self.authority.issue_client("node", [], validity=validity)
        self.write_kubeconfig(Credentials(client_certificate=certificate, client_key=key))

    def write_kubeconfig(self, credentials: Credentials) -> None:
        """Write the kubeconfig with these credentials."""
        ca = self.authority.certificate_pem
        access = ClusterAccess(server=self.server, ca_data=ca, credentials=credentials)
        self.place(self.paths.kubeconfig, kubeconfig.render(access))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Run the API server, and bring what user data brings."""
        application = web.Application()
        application.add_routes([web.get("/{path:.*}", self._handle)])
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        context = None if self.plain else self._context()
        await web.TCPSite(runner, "localhost", 0, ssl_context=context).start()
        self.server = self.server or f"https://localhost:{runner.addresses[0][1]}"
        self.place(self.paths.cluster_ca, self.authority.certificate_pem)
        config = {**MINIMAL, "apiServer": {"server": self.server, "caFile": str(self.paths.cluster_ca)}}
        self.place(self.paths.base / "config-v1.150.0.yaml", json.dumps(config).encode())
        self.join()
        try:
            yield
        finally:
            await runner.cleanup()

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate, key = self.root / "server.crt", self.root / "server.key"
        certificate.write_bytes(self.server_certificate[0])
        key.write_bytes(self.server_certificate[1])
        context.load_cert_chain(certificate, key)
        return context

    async def _handle(self, request: web.Request) -> web.Response:
        date = {"Date": format_datetime(datetime.now(UTC) + self.ahead, usegmt=True)}
        if request.path == "/version" and self.answer.status != 401:
            return web.json_response({}, headers=date)
        return web.Response(
            status=self.answer.status, body=self.answer.body, content_type="application/json", headers=date
        )

    async def diagnose(self) -> Diagnosis:
        """Examine the machine."""
        clock = SystemClock()
        found = state.read(self.paths, self.paths.base)
        examined = Examined(self.paths, self.paths.base, found, self.answers)
        return diagnose.judge(await examine(examined, clock=clock), now=clock.now())


def secret(osc: Any, *, key: str = "osc.yaml") -> web.Response:
    """Return the API server's answer with a Secret."""
    data = {key: base64.b64encode(json.dumps(osc).encode()).decode()}
    metadata = {"name": "osc", "namespace": "kube-system"}
    return web.json_response({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})


def refusal(code: int) -> web.Response:
    """Return the API server's answer with a Status."""
    return web.json_response({"kind": "Status", "code": code, "message": "no"}, status=code)


@pytest.fixture
def machine(tmp_path: Path, authority: Authority) -> Machine:
    """A machine that is well."""
    return Machine(tmp_path, authority, secret(OSC), authority.issue_server("api", ["localhost"]))


def unit(active: str, *, load: str = "loaded") -> Answers:
    """Return answers with another state of the agent's unit."""
    return replace(WELL, agent=Answer(replace(RUNNING, active_state=active, sub_state="dead", load_state=load)))


def expired(machine: Machine) -> None:
    """Give the API server a certificate that has expired."""
    machine.server_certificate = machine.authority._issue(
        "api", [], ExtendedKeyUsageOID.SERVER_AUTH, ["localhost"], timedelta(hours=-1), timedelta(hours=2)
    )


def without_kubeconfig(machine: Machine, token: str = "") -> None:
    """Take the client certificate away, and leave a bootstrap token perhaps."""
    machine.paths.kubeconfig.unlink()
    if token:
        machine.place(machine.paths.bootstrap_token, token.encode())


def damaged_ca(machine: Machine) -> None:
    """Let the only CA bundle be none."""
    machine.paths.kubeconfig.unlink()
    machine.place(machine.paths.cluster_ca, b"no certificate")


def failing_unit(machine: Machine) -> None:
    """Let the agent say that a unit fails."""
    item = {"name": "unit a.service", "cause": "failed/failed", "since": "2026-01-01T00:00:00+00:00", "attempt": 1}
    machine.place(machine.paths.status, json.dumps({"phase": "failing", "items": [item]}).encode())


Break = Callable[[Machine], object]
CONFIG = "config-v1.150.0.yaml"

BEFORE: dict[str, tuple[Break, LinkName, str]] = {
    "clock behind": (lambda m: setattr(m, "ahead", timedelta(hours=1)), "time", "s behind the API server's"),
    "clock ahead": (lambda m: setattr(m, "ahead", -timedelta(hours=1)), "time", "s ahead of the API server's"),
    "unknown name": (lambda m: setattr(m, "server", "https://nowhere.invalid"), "dns", "nowhere.invalid"),
    "nobody listens": (lambda m: setattr(m, "server", "https://127.0.0.1:1"), "tcp", "127.0.0.1 port 1"),
    "no TLS": (lambda m: setattr(m, "plain", True), "tls", "TLS fails"),
    "another CA": (
        lambda m: setattr(m, "server_certificate", Authority.create("x").issue_server("api", ["localhost"])),
        "tls",
        "is not signed by the known CA",
    ),
    "another name": (
        lambda m: setattr(m, "server_certificate", m.authority.issue_server("api", ["other"])),
        "tls",
        "is not for localhost",
    ),
    "expired server": (expired, "tls", "has expired by this machine's clock"),
    "401": (lambda m: setattr(m, "answer", refusal(401)), "credentials", "does not accept the client certificate"),
    "403": (lambda m: setattr(m, "answer", refusal(403)), "authorization", "may not read Secret kube-system/osc"),
    "404": (lambda m: setattr(m, "answer", refusal(404)), "secret", "Secret kube-system/osc does not exist"),
    "500": (lambda m: setattr(m, "answer", refusal(500)), "secret", "does not serve the Secret"),
    "empty Secret": (lambda m: setattr(m, "answer", secret(OSC, key="x")), "secret", "neither osc.yaml"),
    "bad OSC": (
        lambda m: setattr(m, "answer", secret({"spec": {"files": [{"path": "a"}]}})),
        "validation",
        "spec.files[0].path: must be an absolute path",
    ),
}
AFTER: dict[str, tuple[Break, LinkName, str]] = {
    "no configuration": (lambda m: (m.paths.base / CONFIG).unlink(), "config", "there is no configuration"),
    "damaged configuration": (lambda m: m.place(m.paths.base / CONFIG, b"a: ["), "config", "not valid YAML"),
    "damaged CA": (
        damaged_ca,
        "tls",
        "the CA certificates cannot be used",
    ),
    "no credentials": (without_kubeconfig, "credentials", "neither a client certificate nor a bootstrap token"),
    "not approved": (
        lambda m: without_kubeconfig(m, "abcdef.0123456789abcdef"),
        "credentials",
        "no client certificate yet",
    ),
    "expired certificate": (lambda m: m.join(validity=timedelta(seconds=-1)), "credentials", "has expired at"),
    "damaged kubeconfig": (lambda m: m.place(m.paths.kubeconfig, b"{"), "credentials", "cannot be used"),
    "agent stopped": (lambda m: setattr(m, "answers", unit("inactive")), "systemd", "the agent does not run"),
    "agent masked": (lambda m: setattr(m, "answers", unit("inactive", load="masked")), "systemd", "is masked"),
    "no agent": (lambda m: setattr(m, "answers", unit("inactive", load="not-found")), "systemd", "does not exist"),
    "failing unit": (failing_unit, "systemd", "unit a.service fails: failed/failed"),
    "failed unit": (
        lambda m: setattr(m, "answers", replace(WELL, failed_units=Answer((replace(RUNNING, name="b.service"),)))),
        "systemd",
        "unit b.service fails: active/running",
    ),
    "no bus": (
        lambda m: setattr(m, "answers", replace(WELL, agent=Answer(problem="no answer within 5 s"))),
        "systemd",
        "systemd does not answer",
    ),
    "containerd": (
        lambda m: setattr(
            m, "answers", replace(WELL, containerd=Answer(problem="down"), kubelet=Answer(problem="down"))
        ),
        "containerd",
        "down",
    ),
    "kubelet": (lambda m: setattr(m, "answers", replace(WELL, kubelet=Answer(problem="500"))), "kubelet", "500"),
}


async def test_nothing_is_broken_on_a_machine_that_is_well(machine: Machine) -> None:
    """Every link was looked at and is fine: exit code 0."""
    async with machine.serving():
        found = await machine.diagnose()
    assert found.broken is None, found
    assert {link.state for link in found.links} == {"ok"}
    assert diagnose.exit_code(found) == 0
    assert next(iter(diagnose.lines(found, Style()))).startswith("nothing is broken")


@pytest.mark.parametrize("case", [*BEFORE, *AFTER])
async def test_a_broken_machine_gets_the_right_first_cause(machine: Machine, case: str) -> None:
    """One cause, one next step, exit code 1; links behind the broken one on the way are not guessed at."""
    if case in BEFORE:
        break_it, link, cause = BEFORE[case]
        break_it(machine)
    async with machine.serving():
        if case in AFTER:
            break_it, link, cause = AFTER[case]
            break_it(machine)
        found = await machine.diagnose()
    assert found.broken == link, found
    assert cause in found.cause
    assert found.next_step
    assert diagnose.exit_code(found) == 1
    text = list(diagnose.lines(found, Style()))
    assert text[:3] == [f"broken: {link}", f"cause: {found.cause}", f"next:  {found.next_step}"]


async def test_the_first_of_several_is_the_cause(machine: Machine) -> None:
    """What is broken behind it is shown in the table, and not taken for the cause."""
    machine.answer, machine.answers = refusal(403), unit("failed")
    async with machine.serving():
        found = await machine.diagnose()
    assert found.broken == "authorization"
    assert [link.name for link in found.links if link.state == "broken"] == ["authorization", "systemd"]
    assert [link.name for link in found.links if link.state == "notLooked"] == ["secret", "validation"]


async def test_the_way_is_walked_without_credentials_until_it_is_known(machine: Machine) -> None:
    """To a server that cannot be verified nothing secret is sent: it is asked for its time only."""
    seen: list[str] = []

    async def listen(request: web.Request) -> web.Response:
        seen.extend(f"{name}: {value}" for name, value in request.headers.items())
        assert request.transport is not None
        ssl_object = request.transport.get_extra_info("ssl_object")
        seen.append(f"certificate {ssl_object.getpeercert(binary_form=True)}")
        return web.json_response({})

    stranger = Authority.create("stranger")
    machine.server_certificate = stranger.issue_server("api", ["localhost"])
    context = machine._context()
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=machine.authority.certificate_pem.decode())
    application = web.Application()
    application.add_routes([web.get("/{path:.*}", listen)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "localhost", 0, ssl_context=context).start()
    machine.server = f"https://localhost:{runner.addresses[0][1]}"
    async with machine.serving():
        certificate, key = machine.authority.issue_client("node", [])
        machine.write_kubeconfig(Credentials(client_certificate=certificate, client_key=key, token="top-secret"))
        found = await machine.diagnose()
    await runner.cleanup()
    assert found.broken == "tls"
    assert "certificate None" in seen
    assert not [line for line in seen if "authorization" in line.lower() or "top-secret" in line]


async def test_a_bundle_has_no_secret(machine: Machine, tmp_path: Path) -> None:
    """Diagnosis, status, units, state and logs, 0600; neither credentials nor content of files, and no file is overwritten."""
    osc = {
        "spec": {
            "files": [{"path": "/etc/a", "content": {"inline": {"encoding": "", "data": "hidden-file"}}}],
            "units": [
                {"name": "a.service", "content": "hidden-unit", "dropIns": [{"name": "x", "content": "hidden-drop"}]}
            ],
            "criConfig": {"containerd": {"plugins": [{"path": ["a"], "values": {"password": "hidden-value"}}]}},
        }
    }
    target = tmp_path / "bundle.tar.gz"
    async with machine.serving():
        for path in (machine.paths.last_applied, machine.paths.desired, machine.paths.pending_changes):
            machine.place(path, json.dumps(osc).encode())
        cause = "Bearer hidden-bearer-token, password=hidden-password"
        item = {"name": "unit a", "cause": cause, "since": "2026-01-01T00:00:00+00:00", "attempt": 1}
        machine.place(machine.paths.status, json.dumps({"phase": "failing", "items": [item]}).encode())
        found = await machine.diagnose()
        read = state.read(machine.paths, machine.paths.base)
        now = status.gather(read, WELL, Certificate(), now=found.observed_at)
        contents = await bundle.collect(found, now, [RUNNING], paths=machine.paths)
        bundle.write(target, contents, now=found.observed_at)
    assert target.stat().st_mode & 0o777 == 0o600
    with tarfile.open(target) as archive:
        names = archive.getnames()
        text = "".join(member.read().decode() for name in names if (member := archive.extractfile(name)) is not None)
    assert {name.removeprefix("gardener-node-agent/") for name in names} >= {
        *("diagnosis.json", "status.json", "units.txt", "state/last-applied-osc.yaml"),
        "logs/gardener-node-agent.service.log",
    }
    assert "hidden" not in text
    assert "/etc/a" in text
    assert "gardener-node-agent.service\tactive/running" in text
    with pytest.raises(bundle.BundleNotWritten):
        bundle.write(target, contents, now=found.observed_at)
