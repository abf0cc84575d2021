"""The OSC controller's machine with everything around it that `status` and `plan` look at."""

import json
import stat
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from agents.core import files
from agents.core.errors import AgentError
from agents.kube import kubeconfig
from agents.kube.kubeconfig import ClusterAccess, Credentials
from nodeagent.host.consistency import Finding
from nodeagent.inspection import planning, probes, state, status
from nodeagent.inspection.machine import RealMachine
from nodeagent.inspection.plan import Plan
from nodeagent.inspection.probes import NotAnswered
from nodeagent.inspection.state import State
from nodeagent.inspection.status import Status
from nodeagent.version import GARDENER_VERSION
from osc.journal import Reader
from tests.lab.pki import Authority
from tests.support.osc_agent import HOSTNAME, SEARCH_PATH, SECRET, OscAgent
from tests.unit.nodeagent.test_config import MINIMAL

AGENT_UNIT = "gardener-node-agent.service"


class _Machine(RealMachine):
    """The real disk and the systemd of the test; the other three say what the test wants."""

    def __init__(self, looked_at: "LookedAt", found: State) -> None:
        super().__init__(
            paths=looked_at.paths, state=found, clock=looked_at.clock, environment={}, bus=looked_at.host.address
        )
        self._looked_at = looked_at
        self.containerd_files = looked_at.containerd_files

    async def lease_age(self) -> float | None:
        return _answer(self._looked_at.lease_age)

    async def containerd_version(self) -> str:
        return await self._looked_at.containerd.version()

    async def kubelet_healthy(self) -> None:
        await self._looked_at.machine.kubelet_healthy()

    async def drift(self) -> Sequence[Finding]:
        return await super().drift()


def _answer(value: float | AgentError | None) -> float | None:
    if isinstance(value, AgentError):
        raise value
    return value


class LookedAt(OscAgent):
    """One node and its operator."""

    lease_age: float | AgentError | None = 3.0
    read_file: Reader = staticmethod(files.read_optional)

    async def furnish(self) -> None:
        """Bring what a joined machine has beside the OSC."""
        controllers = {"operatingSystemConfig": {"secretName": SECRET, "kubernetesVersion": "1.34.4"}}
        self.place(
            f"var/lib/gardener-node-agent/config-{GARDENER_VERSION}.yaml",
            json.dumps({**MINIMAL, "controllers": controllers}),
        )
        certificate, key = Authority.create("test").issue_client("node", [], validity=timedelta(days=30))
        credentials = Credentials(client_certificate=certificate, client_key=key)
        self.place(
            "var/lib/gardener-node-agent/credentials/kubeconfig",
            kubeconfig.render(
                ClusterAccess(server="https://api", ca_data=certificate, credentials=credentials)
            ).decode(),
        )
        self.place(f"etc/systemd/system/{AGENT_UNIT}", "[Service]\nExecStart=/bin/sleep infinity\n")
        await self.units.reload()
        await self.units.start(AGENT_UNIT)

    def place(self, path: str, content: str, mode: int = 0o600) -> Path:
        """Write a file of the machine."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
        place.chmod(mode)
        return place

    def agent_is_away(self) -> None:
        """Let the agent's metrics be unreachable."""
        self.lease_age = NotAnswered("the agent does not answer")

    async def look(self) -> Status:
        """Look at the machine as `status` does."""
        found = state.read(self.paths, self.paths.base, read_file=self.read_file)
        certificate = status.read_certificate(self.paths, found.config, self.clock.now())
        async with _Machine(self, found) as machine:
            answers = await probes.ask(machine)
        return status.gather(found, answers, certificate, now=self.clock.now())

    async def plan(self, file: Path | None = None) -> Plan:
        """Plan as `plan` does, for an OSC in a file or the one that was asked for last."""
        found = state.read(self.paths, self.paths.base, read_file=self.read_file)
        environment = {"PATH": SEARCH_PATH}
        source, desired = planning.read_desired(
            file, state=found, paths=self.paths, hostname=HOSTNAME, environment=environment
        )
        async with _Machine(self, found) as machine:
            return await planning.gather(
                source, desired, state=found, machine=machine, paths=self.paths, hostname=HOSTNAME
            )

    def tree(self) -> dict[str, tuple[int, int, int, bytes]]:
        """Return all that can be seen of the machine's files: mode, inode, time of change and content."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            status_of = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status_of.st_mode) else b""
            found[str(path.relative_to(self.root))] = (
                status_of.st_mode,
                status_of.st_ino,
                status_of.st_ctime_ns,
                content,
            )
        return found
