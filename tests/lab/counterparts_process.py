"""Start and stop of the counterparts, from the lab's side."""

import datetime as dt
import http.client
import json
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.api import wait_for
from tests.lab.controlplane import ControlPlane
from tests.lab.processes import clean_environment, find, spawn
from tests.lab.requests import Outage

PORT = 9443
_NAME = "counterparts"


class Counterparts:
    """The process with authorizer and CSR approver, and the record of when a test had it down."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._plane = control_plane
        self._outage_path = control_plane.ledger.directory / "outages.jsonl"

    def start(self, *, approver: bool = True, deny_all: bool = False, node_lag: float = 0.0) -> None:
        """Start it and wait until it answers; ends a recorded outage, unless it is to deny everything.

        Args:
            approver: whether CSRs are decided; the webhook answers anyway.
            deny_all: whether the webhook denies everything that it is asked.
            node_lag: seconds for which the webhook does not see a new Node, as a cache would.
        """
        plane = self._plane
        if not (plane.pki_folder / f"{_NAME}.crt").exists():
            plane.issue_server_certificate(_NAME, ["127.0.0.1", plane.placement.address])
        argv = [sys.executable, "-m", "tests.lab.counterparts", "--port", str(PORT), "--pki", str(plane.pki_folder)]
        argv += ["--server", f"https://127.0.0.1:{plane.port}"]
        argv += [] if approver else ["--no-approver"]
        argv += ["--deny-all"] if deny_all else []
        argv += ["--node-lag", str(node_lag)] if node_lag else []
        root = Path(__file__).resolve().parents[2]
        spawn(
            plane.ledger,
            _NAME,
            argv,
            log=plane.log_path(_NAME),
            netns=plane.placement.netns,
            cwd=root,
            env=clean_environment(PYTHONPATH=str(root), PYTHONDONTWRITEBYTECODE="1"),
        )
        wait_for(self._healthy, timeout=20, what="the counterparts to answer")
        if not deny_all and self.outages() and self.outages()[-1][1] is None:
            self._write({"up": _now()})

    def stop(self) -> None:
        """Stop it: from now on node agents are denied everything. Recorded, so that those denials are no faults."""
        self._write({"down": _now()})
        process = find(self._plane.ledger, _NAME)
        if process is not None:
            process.kill()

    @contextmanager
    def down(self) -> Iterator[None]:
        """Have the webhook down for the length of a block: every request that RBAC does not allow gets a 500."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def denying(self) -> Iterator[None]:
        """Have the webhook deny everything for the length of a block: a 403 for whatever RBAC does not allow."""
        self.stop()
        self.start(deny_all=True)
        try:
            yield
        finally:
            process = find(self._plane.ledger, _NAME)
            if process is not None:
                process.kill()
            self.start()

    @contextmanager
    def without_approver(self) -> Iterator[None]:
        """Leave CSRs undecided for the length of a block; the webhook is down for a moment at both ends."""
        with self._different(approver=False):
            yield

    @contextmanager
    def lagging(self, seconds: float) -> Iterator[None]:
        """Let the webhook see a new Node so much later, for the length of a block; down for a moment at both ends."""
        with self._different(node_lag=seconds):
            yield

    @contextmanager
    def _different(self, *, approver: bool = True, node_lag: float = 0.0) -> Iterator[None]:
        self.stop()
        self.start(approver=approver, node_lag=node_lag)
        try:
            yield
        finally:
            self.stop()
            self.start()

    def outages(self) -> list[Outage]:
        """Return when it was down on purpose."""
        found: list[Outage] = []
        lines = self._outage_path.read_text().splitlines() if self._outage_path.exists() else []
        for line in map(json.loads, lines):
            if "down" in line:
                found.append((dt.datetime.fromisoformat(line["down"]), None))
            elif found:
                found[-1] = (found[-1][0], dt.datetime.fromisoformat(line["up"]))
        return found

    def _healthy(self) -> bool:
        context = ssl.create_default_context(cafile=str(self._plane.ca_path))
        connection = http.client.HTTPSConnection(self._plane.placement.address, PORT, timeout=2, context=context)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        finally:
            connection.close()

    def _write(self, entry: dict[str, str]) -> None:
        with self._outage_path.open("a") as outages:
            outages.write(json.dumps(entry) + "\n")


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat()
