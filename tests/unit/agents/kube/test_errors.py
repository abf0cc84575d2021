"""Each failure has a class, and no class carries what must not be seen."""

import json
from datetime import timedelta
from typing import Any

import pytest

from agents.core.errors import RetriableError, TerminalError
from agents.kube import errors
from agents.kube.errors import ApiError, from_response, from_status


def status(code: int, reason: str = "", message: str = "text", **details: Any) -> bytes:
    """Return a Status as the API server sends it."""
    return json.dumps(
        {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    ).encode()


@pytest.mark.parametrize(
    ("code", "reason", "expected", "kind"),
    [
        (400, "BadRequest", errors.BadRequest, TerminalError),
        (401, "Unauthorized", errors.Unauthorized, RetriableError),
        (403, "Forbidden", errors.Forbidden, RetriableError),
        (404, "NotFound", errors.NotFound, RetriableError),
        (405, "MethodNotAllowed", errors.UnexpectedStatus, RetriableError),
        (409, "Conflict", errors.Conflict, RetriableError),
        (409, "AlreadyExists", errors.AlreadyExists, RetriableError),
        (410, "Expired", errors.Gone, RetriableError),
        (422, "Invalid", errors.Invalid, TerminalError),
        (429, "TooManyRequests", errors.TooManyRequests, RetriableError),
        (500, "InternalError", errors.ServerError, RetriableError),
        (503, "ServiceUnavailable", errors.ServerError, RetriableError),
        (504, "Timeout", errors.ServerError, RetriableError),
    ],
)
def test_status_to_class(code: int, reason: str, expected: type[ApiError], kind: type[Exception]) -> None:
    """Contract 4.8: 403 must be retriable, as all but 400 and 422 are."""
    error = from_response(code, status(code, reason), method="GET", path="/x")
    assert type(error) is expected
    assert isinstance(error, kind)
    assert (error.status, error.reason) == (code, reason)
    assert error.fields == {"method": "GET", "path": "/x", "status": code, "reason": reason, "serverMessage": "text"}


def test_each_class_is_of_exactly_one_kind() -> None:
    """No class is both retriable and terminal, none is neither."""
    classes = [
        item
        for item in vars(errors).values()
        if isinstance(item, type) and issubclass(item, ApiError) and item is not ApiError
    ]
    assert len(classes) >= 13
    assert all(issubclass(item, RetriableError) != issubclass(item, TerminalError) for item in classes)


def test_server_text_is_cut() -> None:
    """Text of a Status is cut to 256 characters."""
    error = from_response(404, status(404, "NotFound", "x" * 1000))
    assert error.fields["serverMessage"] == "x" * 256


@pytest.mark.parametrize("body", [b"", b"secret", b'"secret"', b'{"kind":"Secret","message":"secret"}', b"\xff\xfe"])
def test_text_that_is_no_status_is_dropped(body: bytes) -> None:
    """An answer that is not a Status leaves no trace in the error."""
    error = from_response(500, body)
    assert "secret" not in repr(error) + str(error) + repr(error.fields)


@pytest.mark.parametrize(
    ("header", "details", "expected"),
    [
        ("7", {}, 7),
        ("7", {"retryAfterSeconds": 3}, 7),
        (None, {"retryAfterSeconds": 3}, 3),
        ("0", {}, None),
        ("-1", {}, None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", {"retryAfterSeconds": 3}, 3),
        (None, {"retryAfterSeconds": "soon"}, None),
        ("100000000000", {}, 300),
    ],
)
def test_retry_after(header: str | None, details: dict[str, Any], expected: int | None) -> None:
    """The header counts, then the Status, at most five minutes; nonsense counts as none."""
    error = from_response(429, status(429, "TooManyRequests", "text", **details), retry_after=header)
    assert isinstance(error, RetriableError)
    assert error.after == (None if expected is None else timedelta(seconds=expected))


def test_retry_after_of_other_errors_is_ignored() -> None:
    """A 404 with the header does not wait."""
    error = from_response(404, b"", retry_after="7")
    assert isinstance(error, RetriableError)
    assert error.after is None


def test_status_in_a_watch() -> None:
    """A Status that comes as an event brings its own code; without one it is a failure of the server."""
    assert type(from_status({"kind": "Status", "code": 410, "reason": "Expired"})) is errors.Gone
    assert type(from_status({"code": "410", "details": None})) is errors.ServerError
