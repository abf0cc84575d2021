"""Read the configuration file, and notice what became of it since we last did.

A file that cannot be used does not end the agent if it had a good configuration before: it goes on with that one, sets the bad
one aside, and has the OperatingSystemConfig, whose file it is, write it again.

A file that is an older one of ours was written back by user data that runs again after a reboot. It may name a Secret, and with it a
Kubernetes version, of long ago; so the agent goes on with the newest one that it knows, until the OperatingSystemConfig
has written its own. That a change by the OperatingSystemConfig back to an earlier content is no such thing, what it last asked for tells.

Nothing is written to the file here: so whoever else writes it is never fought about it.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from agents.core import files
from agents.core.aside import DAMAGED, keep_aside
from agents.core.config import ConfigError, decode_mapping, read_content
from agents.core.errors import AgentError
from agents.core.generations import Generations, Origin
from agents.core.logging import get_logger
from nodeagent import config
from nodeagent.config import NodeAgentConfiguration
from nodeagent.paths import Paths

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Note:
    """Something that operators are to be told: reason and text of an event."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Known:
    """The configuration to run with, and what is to be said about its file."""

    config: NodeAgentConfiguration
    notes: tuple[Note, ...] = ()


def load(
    path: Path,
    *,
    generations: Generations,
    asked: Callable[[], Collection[bytes]],
    check_kubernetes_version: bool = True,
) -> Known:
    """Read the configuration, or find the one before.

    Args:
        path: the file.
        generations: what is known of it.
        asked: returns what OperatingSystemConfigs want in this file; called only if it is an older one.
        check_kubernetes_version: whether the version must be a supported one.

    Raises:
        ConfigError: it cannot be used, and there is none from before.
    """

    def parse(content: bytes) -> NodeAgentConfiguration:
        return config.parse(path, decode_mapping(path, content), check_kubernetes_version=check_kubernetes_version)

    def newest() -> Iterator[NodeAgentConfiguration]:
        for kept in generations.kept(path):
            try:
                yield parse(kept)
            except ConfigError as error:
                log.debug("Kept configuration not usable", path=str(path), problems=error.problems)

    try:
        content = read_content(path)
        found = parse(content)
    except ConfigError as error:
        for known in newest():
            return Known(known, (_set_aside(path, error),))
        raise
    if generations.origin(path, content) is Origin.OLDER and content not in asked():
        for known in newest():
            text = (
                f"{path} was replaced by one that it held earlier, by user data that ran again perhaps; "
                "the newest known one stays in use until the operating system config has written it again"
            )
            log.error("Configuration file was replaced by an older one", path=str(path))
            return Known(known, (Note("ConfigurationWrittenBack", text),))
    generations.adopt(path, content)
    return Known(found)


def _set_aside(path: Path, error: ConfigError) -> Note:
    problems = "; ".join(error.problems)
    log.error("Configuration not usable, going on with the one before", path=str(path), problems=problems)
    aside = path.with_name(f"{path.name}{DAMAGED}")
    try:
        kept = keep_aside(path, aside) is not None
    except AgentError as failure:
        log.error("Damaged configuration not kept", path=str(path), error=failure)
        kept = False
    where = f"; the file is kept as {aside}" if kept else ""
    return Note("ConfigurationDamaged", f"{path} cannot be used ({problems}), the one before stays in use{where}")


def asked_for(paths: Paths, path: Path, *, hostname: str) -> Collection[bytes]:
    """Return what the last applied OSC, and the last one that was asked for, want in a file."""
    from osc import codec  # a start with an older file is rare, and nothing else here needs it
    from osc.merge import effective

    found: set[bytes] = set()
    for state in (paths.last_applied, paths.desired):
        try:
            if (content := files.read_optional(state)) is None:
                continue
            wanted = effective(codec.decode_document(codec.load_state(content)).config, hostname=hostname)
            for file in wanted.files:
                if paths.root / file.path.lstrip("/") == path and file.content.inline is not None:
                    found.add(codec.decode_file_content(file.content.inline))
        except AgentError as error:
            log.debug("Operating system config not readable", path=str(state), error=error)
    return found
