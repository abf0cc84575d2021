"""Configuration files: strict on types, tolerant of keys that a newer writer added, all problems at once."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypeVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError
from pydantic.alias_generators import to_camel

from agents.core.duration import InvalidDuration, format_duration, parse_duration
from agents.core.errors import AgentError, FatalError
from agents.core.yamlio import YamlError, dump_json, load_yaml


class ConfigModel(BaseModel):
    """Base of configuration models: frozen, camelCase in the file, unknown keys tolerated."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="ignore",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


def _to_timedelta(value: object) -> object:
    if isinstance(value, str):
        try:
            return parse_duration(value)
        except InvalidDuration as error:
            raise ValueError(error.message) from error
    if isinstance(value, timedelta):
        return value
    raise ValueError("expected a duration string such as 10m")


Duration = Annotated[timedelta, BeforeValidator(_to_timedelta), PlainSerializer(format_duration, return_type=str)]


class ConfigError(FatalError):
    """A configuration file cannot be used; `problems` has one line for each reason, with its JSON path."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        super().__init__("configuration is not usable", path=str(path), problems=problems)
        self.problems = problems


M = TypeVar("M", bound=BaseModel)

MOST_CONFIG_BYTES = 8 * 1024 * 1024
"""What a configuration file may hold, as any file that an OperatingSystemConfig brings."""


def load_config(path: Path, model: type[M]) -> M:
    """Read a YAML or JSON file into a model.

    Raises:
        ConfigError: file missing, unreadable, malformed, or a value of the wrong type; all problems at once.
    """
    return parse_config(path, read_mapping(path), model)


def read_mapping(path: Path) -> Mapping[str, object]:
    """Read a YAML or JSON file that holds one object; same errors as `load_config`."""
    return decode_mapping(path, read_content(path))


def read_content(path: Path) -> bytes:
    """Read what a file holds; same errors as `load_config`. A pipe is fine, and what has no end is not read to it."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_CONFIG_BYTES + 1)
    except OSError as error:
        raise ConfigError(path, [f"cannot be read: {error.strerror}"]) from error
    if len(content) > MOST_CONFIG_BYTES:
        raise ConfigError(path, [f"cannot be read: larger than {MOST_CONFIG_BYTES} bytes"])
    return content


def decode_mapping(path: Path, content: bytes) -> Mapping[str, object]:
    """Decode what a file holds; same errors as `load_config`."""
    try:
        value = load_yaml(content)
    except YamlError as error:
        raise ConfigError(path, [str(error)]) from error
    if not isinstance(value, dict):
        raise ConfigError(path, ["expected an object at the top level"])
    return value


def parse_config(path: Path, value: Mapping[str, object], model: type[M]) -> M:
    """Turn a decoded file into a model; same errors as `load_config`."""
    try:
        # By way of JSON, whose strict mode knows that an array may become a tuple.
        return model.model_validate_json(dump_json(value))
    except ValidationError as error:
        # Inputs are left out: a configuration may hold secrets.
        raise ConfigError(
            path, [f"{json_path(item['loc'])}: {item['msg']}" for item in error.errors(include_input=False)]
        ) from None
    except AgentError as error:
        raise ConfigError(path, [str(error)]) from error


def unknown_keys(value: object, model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the JSON path of each key that the model does not know, also in optional models and in lists of models."""
    if not isinstance(value, Mapping):
        return
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    for key, item in value.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        if key not in fields:
            yield path
            continue
        for inner in _models(fields[key].annotation):
            if isinstance(item, Sequence):
                for index, element in enumerate(item):
                    yield from unknown_keys(element, inner, f"{path}[{index}]")
            else:
                yield from unknown_keys(item, inner, path)


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is not dict:
        for argument in get_args(annotation):
            yield from _models(argument)


def json_path(location: tuple[int | str, ...]) -> str:
    """Return a place in a document as text: `a.b[0].c`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "."
