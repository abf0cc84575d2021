"""`validate`: every problem of configuration files and OperatingSystemConfigs, with its path and place.

The models and checks are the agent's own, so what is found here is what the agent would refuse.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from agents.core.config import ConfigError, parse_config, unknown_keys
from agents.core.yaml_places import Place, Places
from agents.core.yamlio import YamlError, load_yaml
from nodeagent import config
from nodeagent.config import NodeAgentConfiguration
from nodeagent.controllers.operatingsystemconfig import desired
from nodeagent.host.hostname import read_hostname
from nodeagent.inspection import source
from nodeagent.inspection.document import document
from nodeagent.inspection.output import Style
from nodeagent.inspection.source import Unreadable
from nodeagent.paths import Paths
from osc import codec
from osc.errors import InvalidOSC
from osc.types import KIND as OSC_KIND

Kind = Literal["config", "osc", "unknown"]
FINE, PROBLEMS, UNREADABLE = 0, 1, 2


@document
class Finding:
    """One thing that is wrong."""

    path: Annotated[str, Field(description="JSON path of the field; empty for the whole file.")]
    message: Annotated[str, Field(description="What is wrong; never quotes a value.")]
    line: Annotated[int | None, Field(description="Where the field stands, or what it is missing in; from 1.")] = None
    column: Annotated[int | None, Field(description="From 1.")] = None


@document
class CheckedFile:
    """What was found in one file."""

    file: Annotated[str, Field(description="As it was named on the command line.")]
    kind: Annotated[Kind, Field(description="What it was checked as.")]
    readable: Annotated[bool, Field(description="False if it could not be read at all.")]
    problems: tuple[Finding, ...]
    unknown_keys: Annotated[
        tuple[str, ...], Field(description="Keys of a configuration that this version does not know; they do no harm.")
    ] = ()


@document
class Validation:
    """What was found in all files."""

    valid: Annotated[bool, Field(description="Whether there is no problem in any file.")]
    files: tuple[CheckedFile, ...]


def gather(files: Iterable[str], *, paths: Paths, check_kubernetes_version: bool) -> Validation:
    """Check files.

    Args:
        files: their names.
        paths: the agent's own files, which no OperatingSystemConfig may write.
        check_kubernetes_version: whether the version in a configuration must be a supported one.
    """
    checked = tuple(_check(file, paths, check_kubernetes_version=check_kubernetes_version) for file in files)
    return Validation(valid=all(one.readable and not one.problems for one in checked), files=checked)


def exit_code(found: Validation) -> int:
    """Return the exit code; what cannot be read weighs most."""
    if not all(one.readable for one in found.files):
        return UNREADABLE
    return FINE if found.valid else PROBLEMS


def lines(found: Validation, style: Style) -> Iterator[str]:
    """Yield a line for each problem, in the form that editors follow, and one for each file without."""
    for one in found.files:
        for problem in one.problems:
            place = "" if problem.line is None else f":{problem.line}:{problem.column}"
            path = f"{problem.path}: " if problem.path else ""
            yield f"{one.file}{place}: {style('error', 'red')}: {path}{problem.message}"
        for key in one.unknown_keys:
            yield f"{one.file}: {style('note', 'yellow')}: {key}: not known to this version, and ignored"
        if not one.problems:
            yield f"{one.file}: {style('valid', 'green')} {_WORDS[one.kind]}"


_WORDS: Mapping[Kind, str] = {"config": "NodeAgentConfiguration", "osc": "OperatingSystemConfig", "unknown": "file"}


def _check(file: str, paths: Paths, *, check_kubernetes_version: bool) -> CheckedFile:
    path = Path(file)
    try:
        content = source.read_bytes(path)
    except Unreadable as error:
        problem = Finding(path="", message=f"cannot be read: {error.fields['problem']}")
        return CheckedFile(file=file, kind="unknown", readable=False, problems=(problem,))
    try:
        loaded = load_yaml(content)
    except YamlError as error:
        return CheckedFile(file=file, kind="unknown", readable=True, problems=(_of_syntax(error),))
    kind = _kind(loaded)
    if kind == "config" and isinstance(loaded, Mapping):
        problems = _check_config(path, loaded, check_kubernetes_version=check_kubernetes_version)
        unknown = tuple(unknown_keys(loaded, NodeAgentConfiguration))
        return CheckedFile(
            file=file, kind=kind, readable=True, problems=_placed(content, problems), unknown_keys=unknown
        )
    if kind == "osc":
        return CheckedFile(file=file, kind=kind, readable=True, problems=_check_osc(content, loaded, paths))
    message = f"must be {config.KIND}, {OSC_KIND}, or a Secret with the latter"
    return CheckedFile(file=file, kind=kind, readable=True, problems=_placed(content, [("kind", message)]))


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
    return [(place, message) for place, _, message in (problem.partition(": ") for problem in problems)]


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
        return _placed(content, problems) if inner is content else tuple(_unplaced(problems))
    return ()


def _placed(content: bytes, problems: Iterable[tuple[str, str]]) -> tuple[Finding, ...]:
    """Add places to problems, in the order of the text."""
    places = Places(content)
    found = [(places.find(path) or Place(1, 1), path, message) for path, message in problems]
    return tuple(
        Finding(path=path, message=message, line=place.line, column=place.column)
        for place, path, message in sorted(found, key=lambda item: (item[0].line, item[0].column))
    )


def _unplaced(problems: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    for path, message in problems:
        yield Finding(path=path, message=message)


def _of_syntax(error: YamlError) -> Finding:
    fields = error.fields
    line, column = fields.get("line"), fields.get("column")
    return Finding(
        path="",
        message=f"not valid YAML: {fields.get('problem')}",
        line=line if isinstance(line, int) and line else None,
        column=column if isinstance(column, int) and column else None,
    )
