"""`validate`: every problem of configuration files and OperatingSystemConfigs, with its path and place.

The models and checks are the agent's own, so what is found here is what the agent would refuse.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from agents.core.config import ConfigError, parse_config, unknown_keys
from agents.core.yamlio import load_yaml
from agents.inspection import validation
from agents.inspection.validation import CheckedFile, Finding, Validation, placed, split
from nodeagent import config
from nodeagent.config import NodeAgentConfiguration
from nodeagent.controllers.operatingsystemconfig import desired
from nodeagent.host.hostname import read_hostname
from nodeagent.inspection import source
from nodeagent.paths import Paths
from osc import codec
from osc.errors import InvalidOSC
from osc.types import KIND as OSC_KIND

Kind = Literal["config", "osc", "unknown"]
WORDS: Mapping[str, str] = {"config": "NodeAgentConfiguration", "osc": "OperatingSystemConfig", "unknown": "file"}
"""What each kind is called."""


def gather(files: Iterable[str], *, paths: Paths, check_kubernetes_version: bool) -> Validation:
    """Check files.

    Args:
        files: their names.
        paths: the agent's own files, which no OperatingSystemConfig may write.
        check_kubernetes_version: whether the version in a configuration must be a supported one.
    """

    def check(file: str, content: bytes) -> CheckedFile:
        return _check(file, content, paths, check_kubernetes_version=check_kubernetes_version)

    return validation.gather(files, check)


def _check(file: str, content: bytes, paths: Paths, *, check_kubernetes_version: bool) -> CheckedFile:
    loaded = load_yaml(content)
    kind = _kind(loaded)
    if kind == "config" and isinstance(loaded, Mapping):
        problems = _check_config(Path(file), loaded, check_kubernetes_version=check_kubernetes_version)
        unknown = tuple(unknown_keys(loaded, NodeAgentConfiguration))
        return CheckedFile(
            file=file, kind=kind, readable=True, problems=placed(content, problems), unknown_keys=unknown
        )
    if kind == "osc":
        return CheckedFile(file=file, kind=kind, readable=True, problems=_check_osc(content, loaded, paths))
    message = f"must be {config.KIND}, {OSC_KIND}, or a Secret with the latter"
    return CheckedFile(file=file, kind=kind, readable=True, problems=placed(content, [("kind", message)]))


def _kind(loaded: object) -> Kind:
    """Tell what a file is meant to be, also where it does not say so."""
    if not isinstance(loaded, Mapping):
        return "unknown"
    kind = loaded.get("kind")
    if kind == config.KIND or (kind is None and "apiServer" in loaded):
        return "config"
    if kind == OSC_KIND or source.is_secret(loaded) or (kind is None and "spec" in loaded):
        return "osc"
    return "unknown"


def _check_config(path: Path, loaded: Mapping[str, object], *, check_kubernetes_version: bool) -> list[tuple[str, str]]:
    try:
        parsed = parse_config(path, loaded, NodeAgentConfiguration)
    except ConfigError as error:
        problems = error.problems
    else:
        problems = list(config.validate(parsed, check_kubernetes_version=check_kubernetes_version))
    return [split(problem) for problem in problems]


def _check_osc(content: bytes, loaded: object, paths: Paths) -> tuple[Finding, ...]:
    inner = content
    try:
        if source.is_secret(loaded) and isinstance(loaded, Mapping):
            inner = source.of_secret(loaded).content
        decoded = codec.decode(inner)
        desired.check(decoded, checksum="", hostname=read_hostname(), paths=paths)
    except InvalidOSC as error:
        problems = [(problem.path, problem.message) for problem in error.problems]
        # Lines of what a Secret carries are nowhere in the file.
        if inner is content:
            return placed(content, problems)
        return tuple(Finding(path=path, message=message) for path, message in problems)
    return ()
