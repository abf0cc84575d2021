"""Errors with codes, and what a status says about them."""

from datetime import UTC, datetime

import pytest

from agents.core.errors import RetriableError
from agents.flow.errors import FlowFailed, Several, TaskError
from agents.kube.errors import Forbidden
from gardenlet.apis.core import ErrorCode, LastError
from gardenlet.operation import errors
from gardenlet.operation.errors import CodedError

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def caused(error: Exception, cause: Exception) -> Exception:
    """Return an error with a cause."""
    error.__cause__ = cause
    return error


def test_codes_come_out_of_any_chain() -> None:
    """Contract controllers 2.7: codes are found behind causes and in several errors, each once; the first in a line counts."""
    inner = CodedError("inner", "ERR_A", "ERR_B")
    task = caused(TaskError("t", "failed"), caused(RetriableError("waited"), inner))
    assert errors.codes_of(task) == ("ERR_A", "ERR_B")
    both = Several([task, CodedError("x", "ERR_B", "ERR_C"), RetriableError("none")])
    assert errors.codes_of(both) == ("ERR_A", "ERR_B", "ERR_C")
    assert errors.codes_of(caused(TaskError("t", "failed"), both)) == ("ERR_A", "ERR_B", "ERR_C")
    assert errors.codes_of(caused(TaskError("t", "failed"), ExceptionGroup("g", [inner]))) == ("ERR_A", "ERR_B")
    assert errors.codes_of(caused(CodedError("outer", "ERR_X"), inner)) == ("ERR_X",)
    assert errors.codes_of(RetriableError("none")) == ()


def test_retriable_is_what_stems_from_a_coded_error() -> None:
    """Contract controllers 2.4: an error is retriable if its chain has an error with codes, even with an empty list."""
    assert errors.is_retriable(caused(RetriableError("x"), CodedError("y")))
    assert not errors.is_retriable(caused(RetriableError("x"), RetriableError("y")))
    loop = RetriableError("x")
    loop.__cause__ = loop
    assert not errors.is_retriable(loop)


def test_wrapped_last_errors() -> None:
    """Contract controllers 2.7: one description with a capital letter, one LastError per error, with its task and codes."""
    first = caused(TaskError("Deploying A", 'task "Deploying A" failed: x'), CodedError("x", "ERR_INFRA_UNAUTHORIZED"))
    second = TaskError("Deploying B", 'task "Deploying B" failed: y')
    assert isinstance(first, TaskError)
    wrapped = errors.wrapped_last_errors(FlowFailed("Shoot", [first, second]), now=NOW)
    assert wrapped.description == (
        'Flow "Shoot" encountered task errors: [task "Deploying A" failed: x task "Deploying B" failed: y]'
    )
    assert [errors.document(entry) for entry in wrapped.last_errors] == [
        {
            "description": 'task "Deploying A" failed: x',
            "taskID": "Deploying A",
            "codes": ["ERR_INFRA_UNAUTHORIZED"],
            "lastUpdateTime": "2026-01-01T00:00:00Z",
        },
        {
            "description": 'task "Deploying B" failed: y',
            "taskID": "Deploying B",
            "lastUpdateTime": "2026-01-01T00:00:00Z",
        },
    ]
    [single] = errors.wrapped_last_errors(RetriableError("no task"), now=NOW).last_errors
    assert single.task_id is None


def test_last_error_is_read_back() -> None:
    """Contract controllers 2.7: `taskID` and codes that we do not know are read as they are."""
    read = LastError.model_validate({"description": "d", "taskID": "t", "codes": ["ERR_NEW"]})
    assert (read.task_id, read.codes) == ("t", ("ERR_NEW",))


@pytest.mark.parametrize("code", list(ErrorCode))
def test_non_retryable_codes(code: ErrorCode) -> None:
    """Contract controllers 2.7: seven codes stop the retries of a Shoot, four do not."""
    stops = {
        "ERR_INFRA_UNAUTHENTICATED",
        "ERR_INFRA_UNAUTHORIZED",
        "ERR_INFRA_DEPENDENCIES",
        "ERR_INFRA_QUOTA_EXCEEDED",
        "ERR_INFRA_RATE_LIMITS_EXCEEDED",
        "ERR_CONFIGURATION_PROBLEM",
        "ERR_PROBLEMATIC_WEBHOOK",
    }
    found = [LastError(codes=("ERR_OTHER",)), LastError(codes=(code,))]
    assert errors.has_non_retryable(found) is (code.value in stops)
    assert errors.has_code(found, code)
    assert not errors.has_code(found[:1], code)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("exceeded quota: pods", True),
        ("Quota 'CPUS' exceeded", True),
        ("VpcLimitExceeded: too many", True),
        ("RequestLimitExceeded: slow down", False),
        ("QUOTA_EXCEEDED", True),
        ("forbidden", False),
    ],
)
def test_quota_is_detected(text: str, found: bool) -> None:
    """Contract controllers 2.7: an error that says that a quota is exhausted gets ERR_INFRA_QUOTA_EXCEEDED, a rate limit does not."""
    error = Forbidden("api server did not allow the request", status=403, serverMessage=text)
    assert errors.codes_of(errors.with_detected_quota(error)) == (("ERR_INFRA_QUOTA_EXCEEDED",) if found else ())


def test_invalid_object_is_a_configuration_problem() -> None:
    """Contract controllers 2.7: a ManagedResource's apply message about an invalid object is ERR_CONFIGURATION_PROBLEM."""
    message = 'Could not apply: error during apply of object "v1/Service/a/b" is invalid: spec.ports'
    assert errors.codes_of_apply_message(message) == ("ERR_CONFIGURATION_PROBLEM",)
    assert errors.codes_of_apply_message("connection refused") == ()
