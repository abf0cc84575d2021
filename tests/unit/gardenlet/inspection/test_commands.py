"""The commands that only look, from their command line: what is printed where, and with which exit code."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gardenlet import cli
from gardenlet.inspection.arguments import SCHEMAS
from gardenlet.inspection.run import run
from gardenlet.version import GARDENER_VERSION, VERSION
from tests.unit.gardenlet.test_config import MINIMAL

ROOT = Path(__file__).parents[4]


def printed(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """Run a command; returns the exit code and what it printed on both streams."""
    stream, errors = io.StringIO(), io.StringIO()
    code = run(arguments, environment, stream=stream, errors=errors)
    return code, stream.getvalue(), errors.getvalue()


def test_version_has_ours_and_gardeners() -> None:
    """Both versions, as text and as JSON."""
    code, text, _ = printed("version")
    assert code == 0
    assert text.startswith(f"gardenlet {GARDENER_VERSION} (gardener-agents {VERSION})\n")
    found = json.loads(printed("version", "-o", "json")[1])
    assert (found["program"], found["version"], found["gardenerVersion"]) == ("gardenlet", VERSION, GARDENER_VERSION)


@pytest.mark.parametrize("command", ["status", "validate", "schema", "version"])
def test_help_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command has help, and those whose exit codes mean something say what; the program's help names them all."""
    assert cli.main([command, "--help"], {}) == 0
    text = capsys.readouterr().out
    assert ("exit codes:" in text) == (command in ("status", "validate"))
    assert cli.main(["--help"], {}) == 0
    assert f"\n  gardenlet {command} " in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["status", "x"], ["validate"], ["schema", "x"], ["version", "-o", "yaml"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As for the program itself."""
    assert cli.main(arguments, {}) == 2
    assert "error:" in capsys.readouterr().err


def test_each_problem_has_path_and_place(tmp_path: Path) -> None:
    """Every problem of every file, with path, line and column; a good file is said to be good; what is not known is noted."""
    good, bad, broken = (tmp_path / name for name in ("good.yaml", "bad.yaml", "broken.yaml"))
    good.write_text(yaml.safe_dump({**MINIMAL, "surprise": 1}))
    bad.write_text("# A comment counts as a line.\n" + yaml.safe_dump(MINIMAL | {"logLevel": "loud"}, sort_keys=True))
    broken.write_text("a: [")
    code, text, _ = printed("validate", str(good), str(bad), str(broken))
    assert code == 1
    line = next(number for number, one in enumerate(bad.read_text().splitlines(), 1) if one.startswith("logLevel"))
    lines = text.splitlines()
    assert lines[0] == f"{good}: note: surprise: not known to this version, and ignored"
    assert lines[1] == f"{good}: valid GardenletConfiguration"
    assert lines[2].startswith(f"{bad}:{line}:1: error: logLevel: ")
    assert re.match(rf"{broken}:\d+:\d+: error: not valid YAML: ", lines[3])
    code, text, _ = printed("validate", str(tmp_path / "none"), "-o", "json")
    assert code == 2
    assert json.loads(text)["files"][0]["readable"] is False
    assert printed("validate", str(good))[0] == 0


def test_a_self_hosted_shoots_configuration_is_another_one(tmp_path: Path) -> None:
    """Contract core 1.9: what is valid depends on the namespace that gardenlet runs in."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(MINIMAL))
    assert printed("validate", str(path))[0] == 0
    assert printed("validate", str(path), NAMESPACE="kube-system")[0] == 1


@pytest.mark.parametrize("kind", SCHEMAS)
def test_schemas_are_schemas(kind: str) -> None:
    """Each is a JSON Schema of an object, with its draft."""
    code, text, _ = printed("schema", kind)
    found: dict[str, Any] = json.loads(text)
    assert code == 0
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert found["type"] == "object"
    assert found["properties"]


def test_the_schema_of_the_configuration_has_what_gardener_writes() -> None:
    """Contract core 2: keys as they stand in the file, durations as text; nothing is required that has a default."""
    found = json.loads(printed("schema", "config")[1])
    assert {"gardenClientConnection", "leaderElection", "seedConfig"} <= found["properties"].keys()
    assert "required" not in found or "logLevel" not in found["required"]
    election = found["$defs"]["LeaderElection"]["properties"]
    assert election["leaseDuration"]["type"] == "string"


def test_the_running_gardenlet_imports_none_of_it() -> None:
    """What an operator's command needs costs the process no memory."""
    code = (
        "import sys, gardenlet.app, gardenlet.cli;"
        "sys.exit(any(name.startswith(('gardenlet.inspection', 'agents.inspection')) for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
