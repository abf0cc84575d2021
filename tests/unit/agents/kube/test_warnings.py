"""What an API server warns about is said once."""

import pytest
from structlog.testing import capture_logs

from agents.kube import warnings
from agents.kube.warnings import Warnings


def note(target: Warnings, *headers: str) -> list[str]:
    """Have an answer with these headers come; returns what was said."""
    with capture_logs() as lines:
        target.note(headers, method="GET", path="/api/v1/endpoints")
    return [line["warning"] for line in lines]


def test_each_text_once() -> None:
    """Contract core 1.1: the same text is not said again, whichever request brings it."""
    target = Warnings(cluster="seed")
    assert note(target, '299 - "v1 Endpoints is deprecated"') == ["v1 Endpoints is deprecated"]
    assert note(target, '299 - "v1 Endpoints is deprecated"') == []
    assert note(target, '299 - "another"') == ["another"]


@pytest.mark.parametrize(
    ("header", "texts"),
    [
        (r'299 - "a \"quoted\" field"', ['a "quoted" field']),
        ('299 kube "one", 299 - "two"', ["one", "two"]),
        ('299 - "dated" "Sun, 22 Nov 2026 00:00:00 GMT"', ["dated"]),
        ('110 - "stale"', []),
        ('299 - ""', []),
        ("299 - no quotes", []),
        ("", []),
        (f'299 - "{"x" * 1000}"', ["x" * 256]),
    ],
)
def test_headers_are_read_as_they_are_defined(header: str, texts: list[str]) -> None:
    """Contract core 1.1: several in one header, quoted characters, a date behind; other codes and what is none are passed over."""
    assert note(Warnings(cluster="seed"), header) == texts


def test_texts_without_an_end_are_not_remembered_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract core 1.1: texts that name objects fill neither the log nor the memory."""
    monkeypatch.setattr(warnings, "MOST_TEXTS", 3)
    target = Warnings(cluster="seed")
    assert note(target, *(f'299 - "object {number}"' for number in range(9))) == ["object 0", "object 1", "object 2"]
