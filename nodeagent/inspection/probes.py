"""What is asked of the running machine: the agent, systemd, containerd and the kubelet, each with a deadline and all at once.

Nobody who does not answer holds up another; what was not answered is `unknown`, with the reason.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

import aiohttp

from agents.core.errors import AgentError, RetriableError
from nodeagent.config import NodeAgentConfiguration, Server
from nodeagent.host.consistency import Finding
from osc.types import OWN_UNIT
from systemd.states import UnitState

DEADLINE = timedelta(seconds=5)
"""Of each answer, but for drift."""
DRIFT_DEADLINE = timedelta(seconds=15)
"""Files out of images that somebody touched are read as a whole."""
LEASE_AGE = b"gardener_node_agent_lease_age_seconds"
_ANY = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what the agent listens on, not we
_OK = 200
T = TypeVar("T")


class NotAnswered(RetriableError):
    """The agent's metrics cannot be had."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What somebody said, or why nothing is known."""

    value: T | None = None
    problem: str = ""


class Machine(Protocol):
    """The parts of the machine that are asked; see `host.py` for the real ones."""

    async def unit(self, name: str) -> UnitState:
        """Return the state of a unit."""
        ...

    async def lease_age(self) -> float | None:
        """Return the age of the heartbeat in seconds as the running agent says, None before the first one."""
        ...

    async def containerd_version(self) -> str:
        """Return containerd's version."""
        ...

    async def kubelet_healthy(self) -> None:
        """Raise unless the kubelet says that it is healthy."""
        ...

    async def failed_units(self) -> Sequence[UnitState]:
        """Return the units of the applied OSC that have failed."""
        ...

    async def drift(self) -> Sequence[Finding]:
        """Return what differs from what was applied."""
        ...


@dataclass(frozen=True, slots=True)
class Answers:
    """All answers of one moment."""

    agent: Answer[UnitState] = field(default_factory=Answer)
    lease_age: Answer[float] = field(default_factory=Answer)
    containerd: Answer[str] = field(default_factory=Answer)
    kubelet: Answer[str] = field(default_factory=Answer)
    failed_units: Answer[Sequence[UnitState]] = field(default_factory=Answer)
    drift: Answer[Sequence[Finding]] = field(default_factory=Answer)


async def ask(machine: Machine) -> Answers:
    """Ask everything at the same time; takes as long as the longest deadline at most."""

    async def kubelet() -> str:
        await machine.kubelet_healthy()
        return "ok"

    async with asyncio.TaskGroup() as group:
        agent = group.create_task(_answer(lambda: machine.unit(OWN_UNIT), DEADLINE))
        lease_age = group.create_task(_answer(machine.lease_age, DEADLINE))
        containerd = group.create_task(_answer(machine.containerd_version, DEADLINE))
        healthy = group.create_task(_answer(kubelet, DEADLINE))
        failed_units = group.create_task(_answer(machine.failed_units, DEADLINE))
        drift = group.create_task(_answer(machine.drift, DRIFT_DEADLINE))
    return Answers(
        agent.result(),
        lease_age.result(),
        containerd.result(),
        healthy.result(),
        failed_units.result(),
        drift.result(),
    )


async def _answer(question: Callable[[], Awaitable[T | None]], deadline: timedelta) -> Answer[T]:
    seconds = deadline.total_seconds()
    try:
        async with asyncio.timeout(seconds):
            return Answer(await question())
    except TimeoutError:
        return Answer(problem=f"no answer within {seconds:g} s")
    except AgentError as error:
        return Answer(problem=str(error))


def metrics_url(config: NodeAgentConfiguration | None) -> str:
    """Return where the agent shows its metrics on this machine; the default if its configuration is not known."""
    host, port = (config.server if config else Server()).metrics_address
    host = _ANY.get(host, host)
    return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"


async def read_lease_age(url: str) -> float | None:
    """Return the age of the heartbeat in seconds that the running agent shows, None if it had none yet.

    Raises:
        NotAnswered: nobody listens there, or it is not the agent.
    """
    timeout = aiohttp.ClientTimeout(total=DEADLINE.total_seconds())
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, allow_redirects=False) as answer:
            if answer.status != _OK:
                raise NotAnswered("the agent's metrics are not there", url=url, status=answer.status)
            async for line in answer.content:
                name, _, value = line.partition(b" ")
                if name == LEASE_AGE:
                    return float(value)
    except TimeoutError as error:
        raise NotAnswered("the agent does not answer", url=url) from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise NotAnswered("the agent does not answer", url=url, problem=type(error).__name__) from error
    return None
