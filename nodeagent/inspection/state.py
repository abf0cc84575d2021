"""What the agent leaves on the disk, read by somebody who must change nothing: no file is set aside, mended or taken over.

Source: `nodeagent/paths.py` names the files; `osc/journal.py` and `nodeagent/status.py` write them.
"""

import errno
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from agents.core import files
from agents.core.config import ConfigError
from agents.core.errors import AgentError, TerminalError
from agents.core.generations import Generations, Origin
from nodeagent import config
from nodeagent.config import NodeAgentConfiguration
from nodeagent.paths import Paths
from nodeagent.version import GARDENER_VERSION
from osc.codec import Decoded, decode_document, load_state
from osc.journal import Reader
from osc.pending import Pending, decode_pending

T = TypeVar("T")


class _BoardModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel)


class BoardItem(_BoardModel):
    """Something that the agent says fails or is waited for."""

    name: str
    cause: str = ""
    since: datetime
    attempt: int = 1
    next_try: datetime | None = None


class Board(_BoardModel):
    """`status.json`: what the agent said last about itself."""

    version: str = ""
    phase: str = ""
    checksum: str = ""
    items: tuple[BoardItem, ...] = ()
    heartbeat: datetime | None = None
    certificate_expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """An OperatingSystemConfig in a state file."""

    decoded: Decoded = field(repr=False)
    digest: str
    """SHA-256 of the file."""
    written: datetime
    origin: Origin | None = None
    """Of last-applied: whether it is the newest that the agent knows of."""


@dataclass(frozen=True, slots=True)
class State:
    """Everything that was found; None where there is nothing, or nothing readable.

    Attributes:
        config_file: its path, None if there is none.
        board_written: when the agent spoke last.
        problems: of each file that is there and cannot be used, by its path.
        denied: whether one of them may not be read by us.
    """

    config_file: Path | None = None
    config: NodeAgentConfiguration | None = None
    desired: Stored | None = None
    applied: Stored | None = None
    pending: Pending | None = None
    board: Board | None = None
    board_written: datetime | None = None
    problems: Mapping[str, str] = field(default_factory=dict)
    denied: bool = False


def read(paths: Paths, config_dir: Path, *, read_file: Reader = files.read_optional) -> State:
    """Read all of it; blocking. Never raises: what cannot be read becomes a problem.

    Args:
        paths: where the machine's files are.
        config_dir: directory of the agent's configuration.
        read_file: how files are read.
    """
    problems: dict[str, str] = {}
    denied: list[Path] = []

    def load(path: Path, decode: Callable[[bytes], T]) -> T | None:
        try:
            content = read_file(path)
            return None if content is None else decode(content)
        except ValidationError:
            problems[str(path)] = "is not of the form that the agent writes"
        except AgentError as error:
            problems[str(path)] = _reason(error)
            if isinstance(error, files.FileError) and error.errno == errno.EACCES:
                denied.append(path)
        return None

    board_written = _written(paths.status)
    config_file, loaded = _load_config(config_dir, problems)
    generations = Generations(paths.generations)
    found = State(
        config_file=config_file,
        config=loaded,
        desired=load(paths.desired, lambda content: _stored(paths.desired, content, None)),
        applied=load(
            paths.last_applied,
            lambda content: _stored(paths.last_applied, content, generations.origin(paths.last_applied, content)),
        ),
        pending=load(paths.pending_changes, decode_pending),
        board=load(paths.status, Board.model_validate_json),
        board_written=board_written,
    )
    return replace(found, problems=problems, denied=bool(denied))


def _stored(path: Path, content: bytes, origin: Origin | None) -> Stored:
    decoded = decode_document(load_state(content))
    written = _written(path)
    if written is None:
        raise TerminalError("vanished while it was read")
    return Stored(decoded, hashlib.sha256(content).hexdigest(), written, origin)


def _load_config(directory: Path, problems: dict[str, str]) -> tuple[Path | None, NodeAgentConfiguration | None]:
    try:
        path = config.find(directory, GARDENER_VERSION)
    except ConfigError as error:
        problems[str(error.fields["path"])] = "; ".join(error.problems)
        return None, None
    except OSError as error:
        problems[str(directory)] = error.strerror or type(error).__name__
        return None, None
    try:
        # Whether this Kubernetes version is supported is the agent's decision, made with its own environment.
        return path, config.load(path, check_kubernetes_version=False)
    except ConfigError as error:
        problems[str(path)] = "; ".join(error.problems)
        return path, None


def _written(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(path.lstat().st_mtime, UTC)
    except OSError:
        return None


def _reason(error: AgentError) -> str:
    problem = error.fields.get("problem")
    return f"{error.message}: {problem}" if problem else error.message
