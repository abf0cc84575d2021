"""What containerd's client prints, and what we make of it."""

import pytest

from nodeagent.host.ctr import CtrSettings, problem


def test_settings_come_from_the_environment() -> None:
    """Contract 6.16, 1.10: CONTAINERD_ADDRESS and CONTAINERD_NAMESPACE; unset and empty mean the defaults."""
    assert CtrSettings.from_environment({}) == CtrSettings("/run/containerd/containerd.sock", "default")
    assert CtrSettings.from_environment({"CONTAINERD_ADDRESS": "", "CONTAINERD_NAMESPACE": "x"}).namespace == "x"
    assert CtrSettings.from_environment({"CONTAINERD_ADDRESS": "/y"}).address == "/y"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('time="2026" level=info msg="next host"\nctr: failed to resolve: not found\n', "failed to resolve: not found"),
        ("Incorrect Usage: flag provided but not defined", "Incorrect Usage: flag provided but not defined"),
        ('ctr: Get "https://s3/x?X-Amz-Signature=abc": EOF', 'Get "https://s3/x?...": EOF'),
        ("", ""),
    ],
)
def test_a_problem_is_the_last_thing_said(said: str, expected: str) -> None:
    """Contract 9 W36: only the client's own last line, without what a signed address carries."""
    assert problem(said) == expected


def test_a_problem_is_bounded() -> None:
    """Contract 9 W36: a long text is cut from the front: the cause is at its end."""
    found = problem("ctr: " + "x" * 10_000 + " connection refused")
    assert len(found) == 512
    assert found.endswith("connection refused")
