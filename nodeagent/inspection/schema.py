"""`schema`: JSON Schemas of what the agent reads, and of what these commands print."""

from agents.inspection.document import json_schema
from agents.inspection.schema import of_configuration
from nodeagent.config import NodeAgentConfiguration
from osc.types import API_VERSION, KIND, OperatingSystemConfig


def gather(kind: str) -> dict[str, object]:
    """Return the JSON Schema of one of `arguments.SCHEMAS`."""
    if kind == "config":
        return of_configuration(NodeAgentConfiguration)
    if kind == "osc":
        return _osc()
    from agents.inspection import validation, version
    from nodeagent import foreground
    from nodeagent.inspection import diagnose, plan, status

    documents: dict[str, type[object]] = {
        "status": status.Status,
        "apply": foreground.Applied,
        "plan": plan.Plan,
        "diagnose": diagnose.Diagnosis,
        "validate": validation.Validation,
        "version": version.Version,
    }
    return json_schema(documents[kind])


def _osc() -> dict[str, object]:
    """Return the schema of what the agent reads of an OperatingSystemConfig; whatever else is in it, it keeps."""
    schema = OperatingSystemConfig.model_json_schema(by_alias=True)
    properties = schema.get("properties", {})
    head = {"apiVersion": {"const": API_VERSION}, "kind": {"const": KIND}}
    return {**schema, "properties": {**head, **properties}}
