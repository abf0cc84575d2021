"""pytest fixtures that stand on the lab; nothing else in the tests starts control planes or machines.

A lab of a test run is named after this process, so that several runs on one host do not meet. What a killed run left is
removed by the next one, because its ledger names an owner that is gone.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import pytest

from tests.lab import packages, state
from tests.lab.agent import AgentSource
from tests.lab.binaries import find_binaries
from tests.lab.capability import why_no_lab
from tests.lab.cluster import Lab
from tests.lab.controlplane import ControlPlane, plain_control_plane
from tests.lab.errors import LabError
from tests.lab.garden.garden import Garden
from tests.lab.machine import Machine
from tests.lab.progress import silent, to_stderr
from tests.lab.requests import Request
from tests.lab.scenario import Scenario
from tests.lab.state import Ledger
from tests.lab.worker_osc import WorkerOsc

_numbers = count(1)


@dataclass(slots=True)
class Joined:
    """A machine that has joined.

    Attributes:
        machine: the machine.
        osc: what it runs; `scenario.apply` publishes a change and waits for it.
        scenario: how it joined, and questions about its Node.
    """

    machine: Machine
    osc: WorkerOsc
    scenario: Scenario


@pytest.fixture(scope="session")
def integration_control_plane() -> Iterator[ControlPlane]:
    """Etcd and kube-apiserver on the host's loopback: authorization Node and RBAC, bootstrap tokens, no machines."""
    state.remove_abandoned()
    plane = plain_control_plane(f"plain-{os.getpid()}")
    state.claim(plane.ledger)
    plane.binaries = find_binaries(say=to_stderr)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
        plane.ledger.remove()


@pytest.fixture(scope="session")
def garden() -> Iterator[Garden]:
    """A garden with a seed of its own, both on the host's loopback."""
    state.remove_abandoned()
    started = Garden(Ledger(f"garden-{os.getpid()}"), say=to_stderr)
    started.ledger.create()
    state.claim(started.ledger)
    started.up()
    try:
        yield started
    finally:
        started.down()


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A lab with control plane and counterparts, shared by all tests of a run; a test brings its own machine and pool."""
    reason = why_no_lab()
    if reason is None:
        try:
            packages.ensure_tools(say=to_stderr)
        except LabError as error:
            reason = str(error)
    if reason is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    started = Lab(f"tests-{os.getpid()}", say=to_stderr)
    started.up()
    try:
        yield started
    finally:
        started.down()


@contextmanager
def without_denials(lab: Lab, machine: str) -> Iterator[None]:
    """Fail if, during a block, the API server refused a machine something that its agent must not ask for."""
    before = len(_faults(lab, machine))
    yield
    faults = _faults(lab, machine)[before:]
    assert not faults, "denied: " + "\n".join(map(str, faults))


def _faults(lab: Lab, machine: str) -> list[Request]:
    return [fault for fault in lab.unexpected_denials() if fault.machine in {machine, None}]


@pytest.fixture
def machine(lab: Lab) -> Iterator[Machine]:
    """A fresh machine of the shared lab, without user data; removed with its Node after the test.

    A request of its agent that was refused fails the test, see `requests.unexpected_denials`.
    """
    name = f"machine-{next(_numbers)}"
    with lab.removed_after(lab.add_machine(name)) as fresh, without_denials(lab, name):
        yield fresh


@pytest.fixture(scope="session")
def agent(lab: Lab) -> AgentSource:
    """The node agent under test: the one-file binary, or the source tree with LAB_AGENT=source."""
    return lab.agent(os.environ.get("LAB_AGENT", "binary"))


@pytest.fixture
def joined(lab: Lab, agent: AgentSource) -> Iterator["Joined"]:
    """A fresh machine in a pool of its own that has joined: the Node is annotated with the OSC's checksum."""
    name = f"joined-{next(_numbers)}"
    scenario = Scenario(lab, agent, silent, machine_name=name, pool_name=name)
    try:
        with without_denials(lab, name):
            osc, fresh = scenario.join()
            yield Joined(fresh, osc, scenario)
    finally:
        if name in lab.machines:
            with lab.removed_after(lab.machine(name)):
                pass
