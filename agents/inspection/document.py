"""What the commands return: frozen dataclasses whose JSON form and JSON Schema have one definition."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

from pydantic import ConfigDict, TypeAdapter
from pydantic.alias_generators import to_camel

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def document(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass whose keys are camelCase in JSON."""
    made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    made.__pydantic_config__ = ConfigDict(alias_generator=to_camel)  # type: ignore[attr-defined]
    return made


def to_json(value: object) -> str:
    """Return a document as JSON text with a final line feed."""
    return TypeAdapter(type(value)).dump_json(value, by_alias=True, indent=2).decode() + "\n"


def json_schema(kind: type[object]) -> dict[str, object]:
    """Return the JSON Schema of a document as it is printed."""
    return TypeAdapter(kind).json_schema(by_alias=True, mode="serialization")
