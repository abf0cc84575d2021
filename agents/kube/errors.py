"""What can go wrong between us and the API server, by class, so that nobody reads message text.

::

    ApiError(AgentError)            status, reason
    ├── BadRequest       400        terminal
    ├── Invalid          422        terminal
    ├── Unauthorized     401        retriable, as all that follow
    ├── Forbidden        403        RBAC or a webhook may still allow it: the back-off grows to its longest
    ├── NotFound         404
    ├── Conflict         409        the object changed meanwhile
    │   └── AlreadyExists           the name is taken
    ├── Gone             410        the resource version is too old: list again
    ├── TooManyRequests  429        `after` from Retry-After
    ├── ServerError      5xx        `after` from Retry-After, if any
    ├── UnexpectedStatus            any other status
    ├── Unavailable                 no connection, or it broke
    ├── DeadlineExceeded            no answer in time
    └── InvalidResponse             not what an API server answers

The server's text is kept only if it is a Status, cut to 256 characters: anything else may come from a proxy or be somebody's
data.
"""

import contextlib
import json
from collections.abc import Mapping
from datetime import timedelta

from agents.core.errors import AgentError, RetriableError, TerminalError

MAX_TEXT = 256
"""Characters of server text that are kept."""

MAX_RETRY_AFTER = timedelta(minutes=5)
"""Longest wait that a server may ask for."""


class ApiError(AgentError):
    """A request to the API server failed.

    Args:
        message: constant text.
        status: HTTP status, None if there was no answer.
        reason: the machine-readable reason of the server's Status.
        fields: method, path, server text and the like.
    """

    def __init__(self, message: str, *, status: int | None = None, reason: str | None = None, **fields: object) -> None:
        if status is not None:
            fields["status"] = status
        if reason is not None:
            fields["reason"] = reason
        super().__init__(message, **fields)
        self.status = status
        self.reason = reason


class BadRequest(ApiError, TerminalError):
    """400: the request can never succeed."""


class Invalid(ApiError, TerminalError):
    """422: the object can never be stored."""


class Unauthorized(ApiError, RetriableError):
    """401: the credentials are not accepted (any more); new ones may come."""


class Forbidden(ApiError, RetriableError):
    """403: not allowed now; RBAC may arrive, or the authorizer may come back. Never a reason to give up or delete."""


class NotFound(ApiError, RetriableError):
    """404: no such object."""


class Conflict(ApiError, RetriableError):
    """409: the object is not what we thought it was."""


class AlreadyExists(Conflict):
    """409 on create: the name is taken."""


class Gone(ApiError, RetriableError):
    """410: the resource version is too old, list again."""


class TooManyRequests(ApiError, RetriableError):
    """429: the server asks to wait; `after` says how long."""


class ServerError(ApiError, RetriableError):
    """5xx: the server could not."""


class UnexpectedStatus(ApiError, RetriableError):
    """A status that no API server should give us, a redirect for example."""


class Unavailable(ApiError, RetriableError):
    """No connection, or it broke before the answer was complete."""


class DeadlineExceeded(ApiError, RetriableError):
    """No connection or no complete answer within the deadline."""


class InvalidResponse(ApiError, RetriableError):
    """The answer is not valid JSON, or not the object that was asked for."""


_CLASSES: Mapping[int, tuple[type[ApiError], str]] = {
    400: (BadRequest, "api server refused the request as malformed"),
    401: (Unauthorized, "api server did not accept the credentials"),
    403: (Forbidden, "api server did not allow the request"),
    404: (NotFound, "object not found"),
    409: (Conflict, "object changed meanwhile"),
    410: (Gone, "resource version is too old"),
    422: (Invalid, "api server refused the object as invalid"),
    429: (TooManyRequests, "api server asks to slow down"),
}
_WITH_AFTER = (TooManyRequests, ServerError)
_SERVER_ERRORS = range(500, 600)


def from_response(status: int, body: bytes, *, retry_after: str | None = None, **fields: object) -> ApiError:
    """Return the error for an answer that is not a success.

    Args:
        status: HTTP status.
        body: the answer; used only if it is a Status.
        retry_after: header Retry-After, in seconds; a date is ignored, API servers do not send one.
        fields: what was asked: method, path.
    """
    document: object = None
    with contextlib.suppress(ValueError):
        document = json.loads(body)
    found = document if isinstance(document, dict) and document.get("kind") == "Status" else {}
    return from_status(found, status=status, retry_after=retry_after, **fields)


def from_status(
    document: Mapping[str, object], *, status: int | None = None, retry_after: str | None = None, **fields: object
) -> ApiError:
    """Return the error for a Status object, for example one in a watch.

    Args:
        document: the Status, or empty.
        status: HTTP status; its own `code` if None.
        retry_after: header Retry-After; else the Status' `details.retryAfterSeconds`.
        fields: what was asked.
    """
    code = document.get("code")
    if status is None:
        status = code if isinstance(code, int) else 500
    reason = _text(document.get("reason"))
    if text := _text(document.get("message")):
        fields["serverMessage"] = text
    kind, message = _kind(status, reason)
    error = kind(message, status=status, reason=reason, **fields)
    if isinstance(error, _WITH_AFTER):
        error.after = _after(retry_after, document.get("details"))
    return error


def _kind(status: int, reason: str | None) -> tuple[type[ApiError], str]:
    if reason == "AlreadyExists":
        return AlreadyExists, "object exists already"
    if status in _CLASSES:
        return _CLASSES[status]
    if status in _SERVER_ERRORS:
        return ServerError, "api server failed"
    return UnexpectedStatus, "unexpected status from the api server"


def _text(value: object) -> str | None:
    return value[:MAX_TEXT] if isinstance(value, str) and value else None


def _after(retry_after: str | None, details: object) -> timedelta | None:
    seconds: object = None
    if retry_after is not None and retry_after.strip().isdecimal():
        seconds = int(retry_after)
    elif isinstance(details, dict):
        seconds = details.get("retryAfterSeconds")
    if not isinstance(seconds, int) or seconds <= 0:
        return None
    return timedelta(seconds=min(seconds, MAX_RETRY_AFTER.total_seconds()))
