"""`validate`: kinds of files, places of problems, exit codes."""

import base64
import json
from pathlib import Path

import pytest
import yaml

from agents.inspection.validation import CheckedFile
from nodeagent.inspection import validate
from nodeagent.paths import Paths
from tests.unit.nodeagent.inspection.test_commands import printed
from tests.unit.nodeagent.test_config import MINIMAL

OSC = """\
apiVersion: extensions.gardener.cloud/v1alpha1
kind: OperatingSystemConfig
metadata: {name: x}
spec:
  files:
  - path: /etc/a
    content:
      inline: {encoding: "", data: top-secret}
  - path: relative
    content:
      inline:
        encoding: b64
        data: "%%%"
  units:
  - name: a.service
    dropIns:
    - {name: "..", content: x}
"""

HEAD = "kind: OperatingSystemConfig\nspec:\n  files:\n"


def check(tmp_path: Path, text: str) -> CheckedFile:
    """Check one file."""
    path = tmp_path / "file.yaml"
    path.write_text(text)
    (found,) = validate.gather([str(path)], paths=Paths(), check_kubernetes_version=True).files
    return found


def test_every_problem_of_an_osc_has_path_and_place(tmp_path: Path) -> None:
    """Contract 5.4, 9 W7: all problems at once, each where the field stands."""
    found = check(tmp_path, OSC)
    assert found.kind == "osc"
    assert [(item.path, item.line, item.column) for item in found.problems] == [
        ("spec.files[1].path", 9, 5),
        ("spec.files[1].content.inline.data", 13, 9),
        ("spec.units[0].dropIns[0].name", 17, 8),
    ]


def test_a_valid_osc_is_valid(tmp_path: Path) -> None:
    """Nothing is found where nothing is wrong, also without apiVersion and kind, as state files may be."""
    assert check(tmp_path, "spec: {files: [{path: /etc/a, content: {inline: {data: x}}}]}").problems == ()


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("kind: OperatingSystemConfig\napiVersion: v1\n", "apiVersion", 2),
        (f"{HEAD}  - path: 5\n", "spec.files[0].path", 4),
        (
            f"{HEAD}  - path: /var/lib/gardener-node-agent/desired-osc.yaml\n    content: {{inline: {{data: x}}}}\n",
            "spec.files[0].path",
            4,
        ),
        (
            f"{HEAD}  - path: /etc/kubernetes/manifests/a.yaml\n    content: {{inline: {{data: 'kind: Service'}}}}\n",
            "file /etc/kubernetes/manifests/a.yaml",
            1,
        ),
    ],
)
def test_what_the_agent_would_refuse_is_refused(tmp_path: Path, text: str, path: str, line: int) -> None:
    """Contract 5.2, 6.12: the checks are the agent's: types, its own files, static pods."""
    (problem,) = check(tmp_path, text).problems
    assert (problem.path, problem.line) == (path, line)


def test_syntax_errors_have_a_place(tmp_path: Path) -> None:
    """YAML that does not parse is one problem with line and column; the text is not quoted."""
    (problem,) = check(tmp_path, "kind: x\nspec: [secret-value\n").problems
    assert (problem.path, problem.line, problem.column) == ("", 3, 1)
    assert "secret-value" not in problem.message


def test_an_osc_in_its_secret_is_found(tmp_path: Path) -> None:
    """Contract 5.1: a Secret as the API server prints it is checked by what it carries."""
    data = {"osc.yaml": base64.b64encode(OSC.encode()).decode()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "data": data}
    found = check(tmp_path, json.dumps(secret))
    assert found.kind == "osc"
    assert [(item.path, item.line) for item in found.problems] == [
        ("spec.files[1].path", None),
        ("spec.files[1].content.inline.data", None),
        ("spec.units[0].dropIns[0].name", None),
    ]
    (empty,) = check(tmp_path, json.dumps({**secret, "data": {}})).problems
    assert empty.path == "data"
    (broken,) = check(tmp_path, json.dumps({**secret, "data": {"osc.yaml": "%"}})).problems
    assert broken.path == "data.osc.yaml"


def test_a_configuration_is_checked_as_the_agent_does(tmp_path: Path) -> None:
    """Contract 2: types, rules and unknown keys; a missing field is placed at what it is missing in."""
    text = yaml.safe_dump({**MINIMAL, "logLevel": "loud", "newer": 1}, sort_keys=False)
    found = check(tmp_path, text)
    assert found.kind == "config"
    (problem,) = found.problems
    assert problem.path == "logLevel"
    assert text.splitlines()[(problem.line or 0) - 1] == "logLevel: loud"
    assert found.unknown_keys == ("newer",)
    missing = check(tmp_path, yaml.safe_dump({**MINIMAL, "apiServer": {}}, sort_keys=False))
    assert [(item.path, item.message) for item in missing.problems] == [("apiServer.server", "Field required")]
    assert missing.problems[0].line is not None
    assert check(tmp_path, yaml.safe_dump(MINIMAL)).problems == ()


def test_the_version_check_can_be_switched_off(tmp_path: Path) -> None:
    """Contract 1.10: the environment variable counts here as for the agent."""
    path = tmp_path / "config.yaml"
    osc = {"secretName": "x", "kubernetesVersion": "1.99.0"}
    path.write_text(yaml.safe_dump({**MINIMAL, "controllers": {"operatingSystemConfig": osc}}))
    assert printed("validate", str(path), root=tmp_path)[0] == 1
    off = printed("validate", str(path), root=tmp_path, EXPERIMENTAL_DISABLE_KUBERNETES_VERSION_CHECK="true")
    assert off[0] == 0


@pytest.mark.parametrize("text", ["", "- a", "kind: Pod", "5", "{}"])
def test_another_kind_of_file_is_a_problem(tmp_path: Path, text: str) -> None:
    """What is neither is said to be neither, and is no crash."""
    found = check(tmp_path, text)
    assert found.kind == "unknown"
    assert [item.path for item in found.problems] == ["kind"]


def test_exit_codes_tell_fine_wrong_and_unreadable(tmp_path: Path) -> None:
    """0, 1 and 2; what cannot be read weighs most, and the others are checked all the same."""
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("spec: {}")
    bad.write_text(OSC)
    assert printed("validate", str(good), root=tmp_path)[0] == 0
    assert printed("validate", str(good), str(bad), root=tmp_path)[0] == 1
    code, text, _ = printed("validate", str(tmp_path / "missing"), str(bad), str(good), root=tmp_path)
    assert code == 2
    assert f"{tmp_path}/missing: error: cannot be read: No such file or directory\n" in text
    assert f"{bad}:9:5: error: spec.files[1].path: must be an absolute path\n" in text
    assert f"{good}: valid OperatingSystemConfig\n" in text


def test_no_content_is_printed(tmp_path: Path) -> None:
    """An OSC's files may be secrets: no form of the output has a byte of them."""
    path = tmp_path / "osc.yaml"
    path.write_text(OSC.replace("top-secret", "top-secret\\ud800"))
    for arguments in ([], ["-o", "json"]):
        _, text, errors = printed("validate", str(path), *arguments, root=tmp_path)
        assert "top-secret" not in text + errors
