"""What node agents and bootstrapping machines asked the API server, from its audit log, and which denials are a fault.

The audit log and not the webhook's own record, because it also has what was refused while the webhook was down, and what
was refused to a bootstrap token. The server writes an entry before the client's next request can be answered.
"""

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

_AGENT_PREFIX = "gardener.cloud:node-agent:machine:"
_BOOTSTRAP_PREFIX = "system:bootstrap:"
_GRACE = dt.timedelta(seconds=5)
_BOUND_TO_NODE = frozenset({"leases", "pods"})
_BOUND_VERBS = frozenset({"get", "patch", "update"})


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as the API server saw it.

    Attributes:
        received: when it came in.
        ended: when it was answered; of a watch, when it was accepted or closed, see `stage`.
        stage: ResponseStarted (a watch that was accepted) or ResponseComplete.
        code: HTTP status.
        reason: of the authorizer, for a denial.
    """

    received: dt.datetime
    ended: dt.datetime
    stage: str
    user: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    reason: str
    agent: str

    @property
    def machine(self) -> str | None:
        """Machine of the node agent that asked; None for another user."""
        return self.user.removeprefix(_AGENT_PREFIX) if self.user.startswith(_AGENT_PREFIX) else None

    @property
    def denied(self) -> bool:
        """Whether authorization refused it."""
        return self.code == 403

    @property
    def observed(self) -> bool:
        """Whether it came from a node agent or from a bootstrapping machine."""
        return self.machine is not None or self.user.startswith(_BOOTSTRAP_PREFIX)

    def __str__(self) -> str:
        """Describe it in one line."""
        what = "/".join(part for part in (self.resource, self.namespace, self.name, self.subresource) if part)
        return f"{self.received:%H:%M:%S.%f} {self.user} {self.verb} {what}: {self.code} {self.reason}".rstrip()


def parse(line: str) -> Request:
    """Read one line of the audit log."""
    event: Mapping[str, Any] = json.loads(line)
    about = event.get("objectRef") or {}
    return Request(
        received=dt.datetime.fromisoformat(event["requestReceivedTimestamp"]),
        ended=dt.datetime.fromisoformat(event["stageTimestamp"]),
        stage=event["stage"],
        user=event["user"].get("username", ""),
        verb=event["verb"],
        resource=about.get("resource", "") or event["requestURI"],
        subresource=about.get("subresource", ""),
        namespace=about.get("namespace", ""),
        name=about.get("name", "") or _selected_name(event["requestURI"]),
        code=int((event.get("responseStatus") or {}).get("code", 0)),
        reason=(event.get("annotations") or {}).get("authorization.k8s.io/reason", ""),
        agent=event.get("userAgent", ""),
    )


def _selected_name(uri: str) -> str:
    for selector in parse_qs(urlsplit(uri).query).get("fieldSelector", []):
        name, _, value = selector.partition("=")
        if name == "metadata.name":
            return value
    return ""


class RequestLog:
    """An audit log that grows while it is read; each line is parsed once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._requests: list[Request] = []

    def read(self) -> list[Request]:
        """Return all requests so far, oldest first; a line that is being written is left for the next time."""
        if self._path.exists():
            with self._path.open("rb") as log:
                log.seek(self._offset)
                fresh = log.read()
            whole = fresh[: fresh.rfind(b"\n") + 1]
            self._offset += len(whole)
            self._requests += [parse(line) for line in whole.decode().splitlines()]
        return list(self._requests)


Outage = tuple[dt.datetime, dt.datetime | None]


def unexpected_denials(requests: Sequence[Request], outages: Iterable[Outage]) -> list[Request]:
    """Return the denials that are a fault of the agent.

    Not one are: what is bound to the own Node before, and within 5 s of, its creation or re-creation; and anything while
    a test had the webhook down, or the API server was starting and had not read its roles yet, or was ending and the webhook
    could read nothing.

    Args:
        requests: all requests, in any order.
        outages: when one of the two was so; an open end means that it still is.
    """
    windows = list(outages)
    ordered = sorted(requests, key=lambda request: request.ended)
    created: dict[str, dt.datetime | None] = {}
    faults = []
    for request in ordered:
        if request.resource == "nodes" and not request.subresource and not request.denied:
            if request.verb == "create" and request.code < 300:
                created[request.name] = request.ended
            elif request.verb == "delete" and request.code < 300:
                created[request.name] = None
        if request.denied and request.observed and not _during(request, windows) and not _before_node(request, created):
            faults.append(request)
    return faults


def _before_node(request: Request, created: Mapping[str, dt.datetime | None]) -> bool:
    own = request.machine
    bound = request.resource in _BOUND_TO_NODE or (
        request.resource == "nodes" and request.verb in _BOUND_VERBS and request.name == own
    )
    since = created.get(own or "")
    return bound and own is not None and (since is None or request.received - since < _GRACE)


def _during(request: Request, windows: Sequence[Outage]) -> bool:
    return any(request.ended >= start and (end is None or request.received <= end) for start, end in windows)
