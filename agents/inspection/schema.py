"""JSON Schemas (draft 2020-12) of configuration files and of what commands print."""

import json
from typing import Any

from pydantic import BaseModel

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def text(schema: dict[str, object]) -> str:
    """Return a schema as text."""
    return json.dumps({"$schema": _DRAFT, **schema}, indent=2) + "\n"


def of_configuration(model: type[BaseModel]) -> dict[str, object]:
    """Return the schema of a file: durations as they are written there, and only what must be there as required."""
    written = model.model_json_schema(by_alias=True, mode="serialization")
    read = model.model_json_schema(by_alias=True)
    return _with_required_of(read, written)


def _with_required_of(read: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    result = {key: value for key, value in written.items() if key != "required"}
    if "required" in read:
        result["required"] = read["required"]
    if "$defs" in written:
        result["$defs"] = {
            name: _with_required_of(read["$defs"][name], inner) for name, inner in written["$defs"].items()
        }
    return result
