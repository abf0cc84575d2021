"""Log lines: constant messages, fields, context, and errors spread into fields."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from agents.core import logging as agent_logging
from agents.core.errors import RetriableError


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where lines go; the root logger is put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_have_the_fixed_keys_and_the_context(stream: io.StringIO) -> None:
    """Each line has ts, level, logger and msg, and the fields bound around it."""
    agent_logging.configure("info", "json", stream=stream)
    log = agent_logging.get_logger("room")
    with agent_logging.bind(controller="lease"):
        log.info("Lease renewed", unit="kubelet.service")
    log.debug("Not shown")
    line = json.loads(stream.getvalue())
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "room",
        "msg": "Lease renewed",
        "unit": "kubelet.service",
        "controller": "lease",
    }


def test_errors_become_fields(stream: io.StringIO) -> None:
    """An error of ours gives its message, kind and fields; any other its class and text."""
    agent_logging.configure("debug", "json", stream=stream)
    log = agent_logging.get_logger("room")
    log.error("Reconcile failed", error=RetriableError("file not written", path="/x"))
    log.error("Reconcile failed", error=ValueError("odd"))
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["error"], first["errorKind"], first["path"]) == ("file not written", "RetriableError", "/x")
    assert (second["error"], second["errorKind"]) == ("ValueError: odd", "ValueError")


def test_text_and_foreign_lines(stream: io.StringIO) -> None:
    """Text output is for people; lines of libraries appear in the same form."""
    agent_logging.configure("info", "text", stream=stream)
    agent_logging.get_logger("room").info("Lease renewed", node="n")
    logging.getLogger("some.library").error("trouble")
    logging.getLogger("aiohttp").info("a body with secrets")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert "msg='Lease renewed'" in lines[0]
    assert "node='n'" in lines[0]
    assert "msg='trouble'" in lines[1]


def test_a_traceback_is_a_field(stream: io.StringIO) -> None:
    """With `exc_info` the line carries the traceback as text."""
    agent_logging.configure("info", "json", stream=stream)
    try:
        raise ValueError("odd")
    except ValueError as error:
        agent_logging.get_logger("room").error("Reconcile failed", error=error, exc_info=error)
    assert "Traceback (most recent call last)" in json.loads(stream.getvalue())["exception"]
