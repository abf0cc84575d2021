"""`schema`: JSON Schemas of what the agent reads, and of what these commands print."""

import json
from typing import Any

from nodeagent.config import NodeAgentConfiguration
from nodeagent.inspection.document import json_schema
from osc.types import API_VERSION, KIND, OperatingSystemConfig

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def gather(kind: str) -> dict[str, object]:
    """Return the JSON Schema of one of `arguments.SCHEMAS`."""
    return {"$schema": _DRAFT, **_schema(kind)}


def lines(schema: dict[str, object]) -> str:
    """Return a schema as text."""
    return json.dumps(schema, indent=2) + "\n"


def _schema(kind: str) -> dict[str, object]:
    if kind == "config":
        return _config()
    if kind == "osc":
        return _osc()
    from nodeagent.inspection import diagnose, plan, status, validate, version

    documents: dict[str, type[object]] = {
        "status": status.Status,
        "plan": plan.Plan,
        "diagnose": diagnose.Diagnosis,
        "validate": validate.Validation,
        "version": version.Version,
    }
    return json_schema(documents[kind])


def _config() -> dict[str, object]:
    """Return the schema of the file: durations as they are written there, and only what must be there as required."""
    written = NodeAgentConfiguration.model_json_schema(by_alias=True, mode="serialization")
    read = NodeAgentConfiguration.model_json_schema(by_alias=True)
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


def _osc() -> dict[str, object]:
    """Return the schema of what the agent reads of an OperatingSystemConfig; whatever else is in it, it keeps."""
    schema = OperatingSystemConfig.model_json_schema(by_alias=True)
    properties = schema.get("properties", {})
    head = {"apiVersion": {"const": API_VERSION}, "kind": {"const": KIND}}
    return {**schema, "properties": {**head, **properties}}
