"""Errors with codes, and what a status says about them.

A code tells a machine why an operation failed. Codes come with `lastError` of extension objects, or from the few places that know
better themselves; they travel as `CodedError` anywhere in a chain of causes.

Source: gardener pkg/api/core/v1beta1/helper/errors.go (contract controllers 2.7).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from agents.core.errors import RetriableError
from agents.flow.errors import TaskError, flatten
from gardenlet.apis.core import NON_RETRYABLE, ErrorCode, LastError, format_time

_QUOTA = re.compile(
    r"(?<!Request)LimitExceeded|Quotas|Quota.*exceeded|exceeded quota|Quota has been met|QUOTA_EXCEEDED", re.IGNORECASE
)
_INVALID_OBJECT = re.compile(r"error during apply of object .* is invalid:", re.IGNORECASE)


class CodedError(RetriableError):
    """An error whose reason is known to machines, or that at least comes from somebody who could have known it.

    Gardener's retry engine calls such an error "retriable" (`is_retriable`), also when it has no code.
    """

    def __init__(self, message: str, *codes: str) -> None:
        super().__init__(message)
        self.codes = codes


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def is_retriable(error: BaseException) -> bool:
    """Return whether an error stems from something that was looked at and found failing, as opposed to not yet done."""
    return any(isinstance(link, CodedError) for link in chain(error))


def codes_of(error: BaseException) -> tuple[str, ...]:
    """Return the codes of an error and of all errors in it, each once, in the order in which they are met."""
    return tuple(dict.fromkeys(_codes(error)))


def _codes(error: BaseException) -> Iterator[str]:
    """Of each line of causes only the first error that has codes counts: it knew what it wrapped."""
    if isinstance(error, CodedError):
        yield from error.codes
        return
    parts = list(flatten(error))
    for part in parts if parts != [error] else ():
        yield from _codes(part)
    if parts == [error] and error.__cause__ is not None:
        yield from _codes(error.__cause__)


def sentence(error: BaseException) -> str:
    """Return an error's text as a status has it: with a capital letter."""
    text = str(error)
    return text[:1].upper() + text[1:]


def last_error(description: str, *codes: str, now: datetime, task_id: str | None = None) -> LastError:
    """Return an entry for `lastErrors`."""
    return LastError(description=description, task_id=task_id, codes=codes, last_update_time=format_time(now))


@dataclass(frozen=True, slots=True)
class WrappedLastErrors:
    """What a status says about a failed operation."""

    description: str
    last_errors: tuple[LastError, ...]


def wrapped_last_errors(error: BaseException, *, now: datetime) -> WrappedLastErrors:
    """Return one description for all, and one entry for each single error, with the task that it happened in."""
    entries = (
        last_error(
            str(single),
            *codes_of(single),
            now=now,
            task_id=single.task if isinstance(single, TaskError) else None,
        )
        for single in flatten(error)
    )
    return WrappedLastErrors(sentence(error), tuple(entries))


def document(error: LastError) -> dict[str, object]:
    """Return an entry as it goes into an object."""
    return {
        key: value for key, value in error.model_dump(mode="json", by_alias=True).items() if value not in (None, [], "")
    }


def has_non_retryable(errors: Iterable[LastError]) -> bool:
    """Return whether one of the errors needs somebody to change something first."""
    return any(code in NON_RETRYABLE for error in errors for code in error.codes)


def has_code(errors: Iterable[LastError], code: ErrorCode) -> bool:
    """Return whether one of the errors has a code."""
    return any(code in error.codes for error in errors)


def with_detected_quota(error: Exception) -> Exception:
    """Return an error of writing an object, with the code if it says that a quota is exhausted."""
    if not _QUOTA.search(str(error)):
        return error
    coded = CodedError(str(error), ErrorCode.INFRA_QUOTA_EXCEEDED)
    coded.__cause__ = error
    return coded


def codes_of_apply_message(message: str) -> tuple[ErrorCode, ...]:
    """Return the codes of a ManagedResource's apply message: an invalid object is somebody's configuration."""
    return (ErrorCode.CONFIGURATION_PROBLEM,) if _INVALID_OBJECT.search(message) else ()
