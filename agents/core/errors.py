"""Error kinds that decide what happens next, so that nobody has to read message text.

::

    AgentError                      message + fields (the fields go to the log)
    ├── RetriableError(after=None)  may succeed later; `after` replaces the backoff
    ├── TerminalError               the same input cannot succeed; wait for new input
    └── FatalError                  the process must end

Each room derives its own tree from exactly one of the three kinds. An exception outside the tree is retriable and is
logged with its traceback.
"""

from datetime import timedelta


class AgentError(Exception):
    """Base of all our errors: a constant message and the values that belong to it.

    Args:
        message: lower-case, without a full stop, the same for each occurrence.
        fields: values for the log; never a secret, a token or a file's content.
    """

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __str__(self) -> str:
        if not self.fields:
            return self.message
        return f"{self.message} ({', '.join(f'{key}={value}' for key, value in self.fields.items())})"


class RetriableError(AgentError):
    """May succeed later with the same input.

    Args:
        after: wait this long instead of the backoff (Retry-After, lease expiry).
    """

    def __init__(self, message: str, *, after: timedelta | None = None, **fields: object) -> None:
        super().__init__(message, **fields)
        self.after = after


class TerminalError(AgentError):
    """The same input cannot succeed; only new input is worth another attempt."""

    after: timedelta | None = None
    """Come back then all the same, for what else there is to do for this key."""


class FatalError(AgentError):
    """The process must end: wrong composition or a broken invariant."""
