"""One worker node for each module of tests; each test leaves it as the base OSC says, and that is checked."""

from collections.abc import Generator, Iterator
from itertools import count

import pytest

from tests.lab.agent import AgentSource
from tests.lab.cluster import Lab
from tests.lab.errors import LabError
from tests.lab.worker_osc import AGENT_UNIT
from tests.support.worker import Worker

_numbers = count(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the agent of the test's worker said when a test failed."""
    report = yield
    worker = getattr(item, "funcargs", {}).get("worker")
    if report.failed and report.when == "call" and isinstance(worker, Worker):
        report.sections.append(("the agent's journal", _journal(worker)))
    return report


def _journal(worker: Worker) -> str:
    """Return the end of the agent's journal, or why there is none: an error here would end the whole run."""
    try:
        return worker.machine.journal(AGENT_UNIT, lines=80)
    except LabError as error:
        return str(error)


@pytest.fixture(scope="module")
def joined(lab: Lab, agent: AgentSource) -> Iterator[Worker]:
    """A machine that joined; removed after the module."""
    with lab.removed_after(lab.add_machine(f"worker-{next(_numbers)}")) as machine:
        yield Worker.join(lab, machine, agent)


@pytest.fixture
def worker(joined: Worker) -> Iterator[Worker]:
    """The module's worker; afterwards the base OSC is applied again and the machine must match it."""
    units, before = joined.unit_directory(), len(joined.refused())
    yield joined
    joined.restore(units)
    assert joined.refused()[before:] == []
