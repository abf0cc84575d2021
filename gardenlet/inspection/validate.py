"""`validate`: every problem of configuration files, by the models and rules that gardenlet itself starts with."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from agents.core.config import ConfigError, parse_config, unknown_keys
from agents.core.yamlio import load_yaml
from agents.inspection import validation
from agents.inspection.validation import CheckedFile, Validation, placed, split
from gardenlet import config_validation
from gardenlet.config import GardenletConfiguration

KIND = "GardenletConfiguration"
WORDS: Mapping[str, str] = {"config": KIND, "unknown": "file"}
"""What each kind is called."""


def gather(files: Iterable[str], *, self_hosted: bool) -> Validation:
    """Check files.

    Args:
        files: their names.
        self_hosted: whether they are for the gardenlet of a self-hosted shoot.
    """

    def check(file: str, content: bytes) -> CheckedFile:
        loaded = load_yaml(content)
        if not isinstance(loaded, Mapping):
            problems = placed(content, [("", f"must be a {KIND}")])
            return CheckedFile(file=file, kind="unknown", readable=True, problems=problems)
        found = placed(content, [split(problem) for problem in _problems(Path(file), loaded, self_hosted=self_hosted)])
        unknown = tuple(unknown_keys(loaded, GardenletConfiguration))
        return CheckedFile(file=file, kind="config", readable=True, problems=found, unknown_keys=unknown)

    return validation.gather(files, check)


def _problems(path: Path, loaded: Mapping[str, object], *, self_hosted: bool) -> list[str]:
    try:
        parsed = parse_config(path, loaded, GardenletConfiguration)
    except ConfigError as error:
        return list(error.problems)
    return list(config_validation.validate(parsed, self_hosted=self_hosted))
