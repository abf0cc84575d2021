"""The commands that only look, from their command line: what is printed where, and with which exit code."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from agents.inspection.output import printable
from nodeagent import cli
from nodeagent.inspection.run import run
from nodeagent.paths import Paths
from nodeagent.version import GARDENER_VERSION, VERSION

ROOT = Path(__file__).parents[4]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Return that it is."""
        return True


def printed(*arguments: str, root: Path, stream: io.StringIO | None = None, **environment: str) -> tuple[int, str, str]:
    """Run a command on the machine below a folder; returns the exit code and what it printed on both streams."""
    parsed = cli.parse(arguments, environment).inspection
    assert parsed is not None
    stream, errors = stream or io.StringIO(), io.StringIO()
    code = run(parsed, environment, paths=Paths(root=root), stream=stream, errors=errors)
    return code, stream.getvalue(), errors.getvalue()


def test_version_has_ours_and_gardeners(tmp_path: Path) -> None:
    """Contract 1.3: both versions, as text and as JSON."""
    code, text, _ = printed("version", root=tmp_path)
    assert code == 0
    assert text.startswith(f"gardener-node-agent {GARDENER_VERSION} (gardener-agents {VERSION})\n")
    _, text, _ = printed("version", "-o", "json", root=tmp_path)
    found = json.loads(text)
    assert (found["version"], found["gardenerVersion"]) == (VERSION, GARDENER_VERSION)


@pytest.mark.parametrize("command", ["status", "plan", "diagnose", "validate", "schema", "version"])
def test_help_of_a_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command has help, and those whose exit codes mean something say what."""
    assert cli.main([command, "--help"], {}) == 0
    text = capsys.readouterr().out
    assert "--output {text,json}" in text
    assert ("exit codes:" in text) == (command in ("status", "plan", "diagnose", "validate"))


def test_help_of_the_program_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Contract 1.2: --help without a command exits with 0 and names them all."""
    assert cli.main(["--help"], {}) == 0
    text = capsys.readouterr().out
    for command in ("bootstrap", "reset", "status", "plan", "diagnose", "validate", "schema", "version"):
        assert f"\n    {command} " in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["stauts"],
        ["status", "x"],
        ["status", "--timeout", "soon"],
        ["status", "--timeout=-1"],
        ["plan", "--osc"],
        ["diagnose", "--bundle"],
        ["validate"],
        ["schema"],
        ["schema", "secrets"],
        ["version", "-o", "yaml"],
        ["status", "--config-dir="],
    ],
)
def test_wrong_usage_is_exit_code_1(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As for the other commands."""
    assert cli.main(arguments, {}) == 1
    assert "error:" in capsys.readouterr().err


def test_a_typing_error_is_answered_with_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever mistypes a command sees which there are."""
    cli.main(["stauts"], {})
    assert "'status'" in capsys.readouterr().err


def test_the_config_dir_defaults_to_the_standard_one() -> None:
    """Only the commands that look have a default: contract 1.2 gives the others none."""
    assert cli.parse(["status"], {}).config_dir == Path("/var/lib/gardener-node-agent")
    assert cli.parse(["status", "--config-dir=/x"], {}).config_dir == Path("/x")
    assert cli.parse(["--config-dir", "/x", "status"], {}).config_dir == Path("/x")


def test_colours_are_for_terminals_only(tmp_path: Path) -> None:
    """A pipe, a dumb terminal and NO_COLOR get plain text."""
    bad = tmp_path / "bad.yaml"
    bad.write_text("kind: [")
    assert "\x1b[31m" in printed("validate", str(bad), root=tmp_path, stream=Terminal())[1]
    assert "\x1b" not in printed("validate", str(bad), root=tmp_path)[1]
    assert "\x1b" not in printed("validate", str(bad), root=tmp_path, stream=Terminal(), NO_COLOR="1")[1]
    assert "\x1b" not in printed("validate", str(bad), root=tmp_path, stream=Terminal(), TERM="dumb")[1]


def test_no_file_can_steer_the_terminal() -> None:
    """Control characters of content and causes are written out, tabs and letters stay."""
    assert printable("a\tb\x1b[2Jä\r\n") == "a\tb\\x1b[2Jä\\r\\n"


@pytest.mark.parametrize(
    "script",
    [
        "import nodeagent.app, nodeagent.commands",
        "from nodeagent import cli; cli.parse(['--config-dir=/x'], {}); cli.parse(['--config-dir', '/x'], {})",
    ],
)
def test_the_running_agent_never_loads_them(script: str) -> None:
    """What an operator's command needs costs the daemon no memory: not one module of the room is imported."""
    check = "; import sys; sys.exit(any(name.startswith('nodeagent.inspection') for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script + check], cwd=ROOT, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
