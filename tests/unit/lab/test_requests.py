"""Denials in the audit log: which are a fault of the agent and which are not."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab.requests import Request, RequestLog, parse, unexpected_denials

_START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_AGENT = "gardener.cloud:node-agent:machine:m1"


def _at(seconds: float) -> dt.datetime:
    return _START + dt.timedelta(seconds=seconds)


def _request(
    seconds: float, verb: str, resource: str, name: str = "", *, code: int = 403, user: str = _AGENT, **extra: Any
) -> Request:
    fields = {"subresource": "", "namespace": "", "reason": "", "agent": "", "stage": "ResponseComplete", **extra}
    moment = _at(seconds)
    return Request(
        received=moment, ended=moment, user=user, verb=verb, resource=resource, name=name, code=code, **fields
    )


_CREATED = _request(10, "create", "nodes", "m1", code=201, user="system:node:m1")
_DELETED = _request(100, "delete", "nodes", "m1", code=200, user="admin")


@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        (_request(1, "get", "leases", "gardener-node-agent-m1"), False),
        (_request(1, "list", "pods"), False),
        (_request(1, "patch", "nodes", "m1", subresource="status"), False),
        (_request(1, "get", "nodes", "m2"), True),
        (_request(1, "delete", "nodes", "m1"), True),
        (_request(1, "get", "secrets", "x"), True),
        (_request(14.9, "patch", "nodes", "m1"), False),
        (_request(15.1, "patch", "nodes", "m1"), True),
        (_request(101, "patch", "nodes", "m1"), False),
        (_request(1, "get", "secrets", "x", user="system:bootstrap:abcdef"), True),
        (_request(1, "get", "leases", "x", user="system:bootstrap:abcdef"), True),
        (_request(1, "get", "secrets", "x", user="somebody"), False),
        (_request(1, "get", "secrets", "x", code=404), False),
    ],
)
def test_denial_is_a_fault_unless_bound_to_the_own_young_node(request_: Request, fault: bool) -> None:
    """Before the Node, and within 5 s of its (re)creation, what is bound to it may be refused; nothing else ever."""
    found = unexpected_denials([_CREATED, _DELETED, request_], [])
    assert found == ([request_] if fault else [])


def test_denials_while_the_webhook_is_down_are_no_faults() -> None:
    """A test that stops the webhook makes every request fail; before and after, denials count."""
    requests = [_request(second, "get", "secrets", "x") for second in (1, 5, 9, 20)]
    assert unexpected_denials(requests, [(_at(4), _at(8))]) == [requests[0], requests[2], requests[3]]
    assert unexpected_denials(requests, [(_at(4), None)]) == [requests[0]]


def test_recreated_node_starts_the_five_seconds_anew() -> None:
    """After a deletion and a new creation the same grace holds again."""
    again = _request(200, "create", "nodes", "m1", code=201, user="system:node:m1")
    late, early = _request(206, "update", "leases", "l"), _request(204, "update", "leases", "l")
    assert unexpected_denials([_CREATED, _DELETED, again, late, early], []) == [late]


def test_audit_log_is_read_up_to_the_last_whole_line(tmp_path: Path) -> None:
    """The name of a list by name comes from its field selector; a torn last line is left out; no file is no requests."""
    event = {
        "stage": "ResponseComplete",
        "requestReceivedTimestamp": "2026-01-01T00:00:00.000000Z",
        "stageTimestamp": "2026-01-01T00:00:00.100000Z",
        "user": {"username": _AGENT},
        "verb": "list",
        "requestURI": "/api/v1/namespaces/kube-system/secrets?fieldSelector=metadata.name%3Dosc",
        "objectRef": {"resource": "secrets", "namespace": "kube-system"},
        "responseStatus": {"code": 403},
        "annotations": {"authorization.k8s.io/reason": "no"},
    }
    path = tmp_path / "audit.jsonl"
    log = RequestLog(path)
    assert log.read() == []
    path.write_text(json.dumps(event) + "\n" + json.dumps(event)[:50])
    (found,) = log.read()
    path.write_text((json.dumps(event) + "\n") * 2)
    assert len(log.read()) == 2
    assert (found.name, found.machine, found.denied, found.reason) == ("osc", "m1", True, "no")
    assert str(found).endswith(f"{_AGENT} list secrets/kube-system/osc: 403 no")
    plain = parse(json.dumps({**event, "objectRef": None, "requestURI": "/version", "annotations": None}))
    assert plain.resource == "/version"
