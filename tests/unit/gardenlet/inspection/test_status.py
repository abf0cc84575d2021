"""What is made of the answers of a gardenlet's ports; the real ones are in tests/integration/gardenlet/test_process.py."""

from datetime import UTC, datetime

import pytest

from agents.inspection.output import Style
from gardenlet.inspection import status
from gardenlet.inspection.status import Status

LIVE = (
    "[+]ping ok\n[+]runtime-informer-sync ok\n[+]periodic-health ok\n[i]event-loop-lag: 0.001 s\nhealthz check passed\n"
)
READY = "[+]runtime-informer-sync ok\n[+]startup ok\nreadyz check passed\n"
FAILS = LIVE.replace("[+]periodic-health ok", "[-]periodic-health failed: seed: connection failed (since 12 s)")
STARTS = READY.replace("[+]startup ok", "[-]startup failed: start is at 'version skew' for 12 s")
METRICS = (
    '# TYPE gardenlet_build_info gauge\ngardenlet_build_info{version="v0.1.0",gardener_version="v1.150.0"} 1.0\n'
    "# TYPE gardenlet_heartbeat_last_success_timestamp_seconds gauge\n"
    "gardenlet_heartbeat_last_success_timestamp_seconds 1.7672256e+09\n"
    "# TYPE gardenlet_client_certificate_expiration_timestamp_seconds gauge\n"
    "gardenlet_client_certificate_expiration_timestamp_seconds 1.7673e+09\n"
)
NOW = datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("live", "ready", "metrics", "state", "code"),
    [
        (LIVE, READY, METRICS, "beating", 0),
        (LIVE, READY, METRICS.replace("1.7672256e+09", "0.0"), "following", 0),
        (LIVE, STARTS, "", "starting", 2),
        (FAILS, READY, METRICS, "failing", 1),
        (FAILS, STARTS, METRICS, "failing", 1),
    ],
)
def test_state_and_exit_code(live: str, ready: str, metrics: str, state: str, code: int) -> None:
    """A follower is as well as a leader; a check that fails weighs more than a start that is under way."""
    found = status.read(live, ready, metrics, now=NOW)
    assert (found.state, status.exit_code(found)) == (state, code)


def test_what_is_told() -> None:
    """Checks with their reasons, notes, the age of the heartbeat, the certificate, and the version that runs."""
    found = status.read(FAILS, READY, METRICS, now=NOW)
    assert found.version == "v0.1.0"
    assert found.heartbeat_age_seconds == 5.0
    assert found.certificate_expires == datetime(2026, 1, 1, 20, 40, tzinfo=UTC)
    assert found.notes == {"event-loop-lag": "0.001 s"}
    assert [(check.endpoint, check.name, check.passed) for check in found.checks] == [
        ("healthz", "ping", True),
        ("healthz", "runtime-informer-sync", True),
        ("healthz", "periodic-health", False),
        ("readyz", "runtime-informer-sync", True),
        ("readyz", "startup", True),
    ]
    text = "\n".join(status.lines(found, Style()))
    assert "gardenlet: failing, v0.1.0" in text
    assert "fails: seed: connection failed (since 12 s)" in text
    assert "renewed: 5.0 s ago" in text
    assert "expires: 2026-01-01 20:40 UTC" in text


async def test_nobody_answers(unused_tcp_port: int) -> None:
    """A gardenlet that does not run is an answer, and exit code 1."""
    url = f"http://127.0.0.1:{unused_tcp_port}"
    found = await status.gather(url, url, now=NOW)
    assert (found.state, status.exit_code(found)) == ("not running", 1)
    assert f"{unused_tcp_port}/healthz" in found.problem
    assert list(status.lines(Status(state="not running", problem="why"), Style())) == [
        "gardenlet: not running",
        "  why",
    ]
