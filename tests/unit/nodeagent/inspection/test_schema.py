"""`schema`: what the commands print, and what the agent reads, is as their JSON Schemas say."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agents.inspection.document import to_json
from nodeagent.inspection import schema
from nodeagent.inspection.arguments import SCHEMAS
from nodeagent.inspection.version import gather
from tests.support.looked_at import LookedAt
from tests.support.osc_agent import SLEEP, inline
from tests.unit.nodeagent.inspection.test_commands import printed
from tests.unit.nodeagent.test_config import MINIMAL

Schema = Mapping[str, Any]
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def violations(value: Any, rule: Schema, root: Schema, path: str = "$") -> Iterator[str]:
    """Yield where a value is not as a schema says; knows the words that ours use, and names others."""
    unknown = rule.keys() - {
        *("$ref", "$defs", "$schema", "anyOf", "enum", "const", "type", "properties", "required", "items"),
        *("additionalProperties", "title", "description", "default", "format", "minimum", "maximum"),
    }
    yield from (f"{path}: the schema says {word}" for word in unknown)
    if "$ref" in rule:
        yield from violations(value, root["$defs"][rule["$ref"].rpartition("/")[2]], root, path)
    if "anyOf" in rule and all(list(violations(value, one, root, path)) for one in rule["anyOf"]):
        yield f"{path}: is none of {rule['anyOf']}"
    if "enum" in rule and value not in rule["enum"]:
        yield f"{path}: {value!r} is none of {rule['enum']}"
    if "const" in rule and value != rule["const"]:
        yield f"{path}: is not {rule['const']}"
    if "type" in rule and not isinstance(value, _TYPES[rule["type"]]):
        yield f"{path}: is no {rule['type']}"
    if isinstance(value, dict):
        yield from (f"{path}: lacks {name}" for name in rule.get("required", ()) if name not in value)
        for name, item in value.items():
            inner = rule.get("properties", {}).get(name, rule.get("additionalProperties"))
            if isinstance(inner, dict):
                yield from violations(item, inner, root, f"{path}.{name}")
            elif "properties" in rule:
                yield f"{path}.{name}: is not in the schema"
    if isinstance(value, list) and "items" in rule:
        for index, item in enumerate(value):
            yield from violations(item, rule["items"], root, f"{path}[{index}]")


def check(kind: str, value: Any) -> list[str]:
    """Return where a value is not as a schema says."""
    found = schema.gather(kind)
    return list(violations(value, found, found))


async def test_status_and_plan_are_as_their_schemas_say(node: LookedAt) -> None:
    """The JSON of both commands has exactly what the schema names, on a machine where there is much to say."""
    async with node.connected():
        node.publish(files=[inline("/etc/a", "one", 0o644)], units=[{"name": "a.service", "content": SLEEP}])
        await node.reconcile()
        node.place("etc/a", "drift", 0o644)
        status = json.loads(to_json(await node.look()))
        path = node.root.parent / f"{node.root.name}.json"
        path.write_text(json.dumps({"spec": {"files": [inline("/etc/b", "two", 0o644)]}}))
        plan = json.loads(to_json(await node.plan(path)))
    assert status["drift"]["items"]
    assert plan["items"]
    assert check("status", status) == []
    assert check("plan", plan) == []
    assert check("status", {**status, "outcome": "perhaps"}) != []
    assert check("plan", {key: value for key, value in plan.items() if key != "items"}) != []


def test_validate_and_version_are_as_their_schemas_say(tmp_path: Path) -> None:
    """Also for the two small ones."""
    path = tmp_path / "x.yaml"
    path.write_text("kind: OperatingSystemConfig\nspec: {files: [{path: a}]}")
    found = json.loads(printed("validate", "-o", "json", str(path), str(tmp_path / "none"), root=tmp_path)[1])
    assert len(found["files"]) == 2
    assert check("validate", found) == []
    assert check("version", json.loads(to_json(gather()))) == []


def test_diagnose_is_as_its_schema_says(tmp_path: Path) -> None:
    """On an empty machine: exit code 1, the first link is broken, and every link is listed."""
    code, out, _ = printed("diagnose", "-o", "json", root=tmp_path, CONTAINERD_ADDRESS=f"{tmp_path}/none")
    found = json.loads(out)
    assert (code, found["broken"], len(found["links"])) == (1, "config", 13)
    assert check("diagnose", found) == []


def test_a_configuration_and_an_osc_fit_their_schemas() -> None:
    """Contract 2, 5.3: what the agent accepts is accepted, durations as they are written in the file."""
    osc = {"secretName": "x", "kubernetesVersion": "1.34.4", "syncPeriod": "10m0s"}
    assert check("config", {**MINIMAL, "controllers": {"operatingSystemConfig": osc}}) == []
    assert check("config", {**MINIMAL, "apiServer": {}}) == ["$.apiServer: lacks server"]
    document = {
        "apiVersion": "extensions.gardener.cloud/v1alpha1",
        "kind": "OperatingSystemConfig",
        "spec": {"files": [inline("/etc/a", "x", 0o644)], "units": [{"name": "a.service", "enable": True}]},
    }
    assert check("osc", document) == []
    assert check("osc", {**document, "kind": "Pod"}) == ["$.kind: is not OperatingSystemConfig"]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_schema_is_printed_with_its_draft(kind: str, tmp_path: Path) -> None:
    """`schema KIND` prints JSON and ends with 0."""
    code, out, _ = printed("schema", kind, root=tmp_path)
    assert code == 0
    found = json.loads(out)
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert found["title"]


@pytest.mark.parametrize("kind", ["status", "plan", "diagnose", "validate", "version"])
def test_no_docstring_is_needed_for_a_description(kind: str) -> None:
    """The one-file build has no docstrings: what fields mean is in the code itself."""
    text = json.dumps(schema.gather(kind))
    assert text.count('"description"') >= 4
