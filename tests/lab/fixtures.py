"""pytest fixtures that stand on the lab; nothing else in the tests starts control planes or machines.

A lab of a test run is named after this process, so that several runs on one host do not meet. What a killed run left is
removed by the next one, because its ledger names an owner that is gone.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import pytest

from tests.lab import state
from tests.lab.agent import AgentSource
from tests.lab.binaries import find_binaries
from tests.lab.capability import why_no_lab
from tests.lab.cluster import Lab
from tests.lab.controlplane import ControlPlane, plain_control_plane
from tests.lab.errors import LabError
from tests.lab.machine import Machine
from tests.lab.progress import silent, to_stderr
from tests.lab.scenario import Scenario
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
def lab() -> Iterator[Lab]:
    """A lab with control plane and counterparts, shared by all tests of a run; a test brings its own machine and pool."""
    reason = why_no_lab()
    if reason is not None:
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    started = Lab(f"tests-{os.getpid()}", say=to_stderr)
    try:
        started.up()
    except LabError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    try:
        yield started
    finally:
        started.down()


@pytest.fixture
def machine(lab: Lab) -> Iterator[Machine]:
    """A fresh machine of the shared lab, without user data; removed with its Node after the test."""
    with lab.removed_after(lab.add_machine(f"machine-{next(_numbers)}")) as fresh:
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
        osc, fresh = scenario.join()
        yield Joined(fresh, osc, scenario)
    finally:
        if name in lab.machines:
            with lab.removed_after(lab.machine(name)):
                pass


@pytest.fixture
def no_denials(lab: Lab) -> Iterator[None]:
    """Fail a test during which the API server refused a request that the agent must not send."""
    before = len(lab.unexpected_denials())
    yield
    faults = lab.unexpected_denials()[before:]
    assert not faults, "\n".join(map(str, faults))
