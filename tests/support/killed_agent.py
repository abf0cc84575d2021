"""An agent that dies in this process, at the N-th call that changes a file, systemd, a credential or the API server.

The call raises instead, and so does all that a dying process would still do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from agents.kube.models import EVENTS
from tests.support.osc_agent import OscAgent
from tests.support.system_calls import OnCall, system_calls, told


class Killed(BaseException):
    """The agent is gone."""


@dataclass(slots=True)
class Deadly:
    """Counts calls; the N-th one and all after it raise."""

    at: int
    calls: list[str] = field(default_factory=list)

    def call(self, name: str) -> None:
        """Count one."""
        self.calls.append(name)
        if len(self.calls) >= self.at:
            raise Killed(name)


@contextmanager
def deadly(node: OscAgent, at: int) -> Iterator[Deadly]:
    """Have a new process die at the N-th call that changes something."""
    found = Deadly(at)
    calls = ("rename", "replace", "unlink", "rmdir", "link")
    with pytest.MonkeyPatch.context() as patch, system_calls(calls, found.call):
        for name in ("patch", "delete"):
            patch.setattr(node.client, name, _but_events(getattr(node.client, name), found.call))
        for thing, names in (
            (node.machine, ("restart_kubelet", "renew_certificate", "resync_tokens")),
            (node.units, ("reload", "restart", "stop", "enable")),
        ):
            for name in names:
                patch.setattr(thing, name, told(name, getattr(thing, name), found.call))
        node.start_process()
        yield found
    node.start_process()


def _but_events(request: Callable[..., Any], on_call: OnCall) -> Callable[..., Any]:
    """Have a kind of request told; the recorder of events has a task of its own."""
    watched = told("request", request, on_call)

    def call(*args: Any, **kwargs: Any) -> Any:
        return (request if EVENTS in args else watched)(*args, **kwargs)

    return call
