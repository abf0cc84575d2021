"""Key/value logging: constant messages, variable values as fields, JSON or text on stderr.

structlog over the standard library. Fields are lowerCamelCase as in Gardener's logging guideline, so that existing
dashboards keep working; levels are error, info and debug.
"""

import logging
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Literal, Protocol, TextIO, cast

from agents.core.errors import AgentError
from agents.core.imports import replaced

with replaced({"rich": None}):  # 3 MB for colours that an agent's log does not have
    import structlog

Level = Literal["debug", "info", "error"]
Format = Literal["json", "text"]


class Logger(Protocol):
    """What the rooms use of a logger."""

    def debug(self, event: str, **fields: object) -> None:
        """Log what only a developer asks for."""
        ...

    def info(self, event: str, **fields: object) -> None:
        """Log a change that was made, or a state that an operator wants to see."""
        ...

    def error(self, event: str, **fields: object) -> None:
        """Log a failure; pass the exception as `error`."""
        ...


def get_logger(name: str) -> Logger:
    """Return the logger of a module; pass `__name__`."""
    return cast("Logger", structlog.stdlib.get_logger(name))


@contextmanager
def bind(**fields: object) -> Iterator[None]:
    """Add fields to each line logged in this context, in tasks started from it too."""
    with structlog.contextvars.bound_contextvars(**fields):
        yield


def configure(level: Level, output: Format, *, stream: TextIO | None = None) -> None:
    """Set up logging for the process.

    Args:
        level: lowest level that is written.
        output: `json` for one object a line, `text` for people.
        stream: where lines go; stderr by default.
    """
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            _explain_error,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("msg"),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _renderer(output)],
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
                structlog.processors.EventRenamer("msg"),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(getattr(logging, level.upper()))
    # Libraries log request details, bodies included, at lower levels.
    for library in ("asyncio", "aiohttp", "kubernetes_asyncio", "dbus_next"):
        logging.getLogger(library).setLevel(logging.ERROR)


def _explain_error(_logger: object, _method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Spread an exception in `error` into its text, kind and fields."""
    error = event.get("error")
    if isinstance(error, BaseException):
        event["error"] = error.message if isinstance(error, AgentError) else f"{type(error).__name__}: {error}"
        event["errorKind"] = type(error).__name__
        if isinstance(error, AgentError):
            for key, value in error.fields.items():
                event.setdefault(key, value)
    return event


def _renderer(output: Format) -> structlog.typing.Processor:
    if output == "json":
        return structlog.processors.JSONRenderer(default=str, ensure_ascii=False)
    return structlog.processors.KeyValueRenderer(key_order=["ts", "level", "logger", "msg"], drop_missing=True)
