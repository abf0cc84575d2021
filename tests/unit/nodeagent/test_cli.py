"""The command line: what is printed, and with which exit code."""

from pathlib import Path

import pytest

from nodeagent import cli
from nodeagent.paths import Paths
from nodeagent.version import GARDENER_VERSION
from tests.unit.nodeagent.test_config import MINIMAL


def test_version_is_printed_before_anything_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    """Contract 1.2: --version prints and exits 0, without a configuration."""
    assert cli.main(["--version"], {}) == 0
    assert GARDENER_VERSION in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--config-dir", ""],
        ["--config-dir"],
        ["surprise"],
        ["bootstrap"],
        ["bootstrap", "x", "--config-dir=/y"],
        ["reset"],
    ],
)
def test_wrong_usage_is_exit_code_1(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Contract 1.2: no positional arguments, --config-dir has no default and must not be empty."""
    assert cli.main(arguments, {}) == 1
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--config-dir=/x"],
        ["bootstrap", "--config-dir=/x"],
        ["--config-dir=/x", "bootstrap"],
        ["reset", "--config-dir=/x"],
    ],
)
def test_config_dir_is_a_flag_of_every_command(arguments: list[str]) -> None:
    """Contract 1.2: the flag is accepted before and after the command."""
    options = cli.parse(arguments, {"NOTIFY_SOCKET": "/run/n"})
    assert options.config_dir == Path("/x")


def test_each_problem_is_a_line_without_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Contract 2: a bad configuration is exit code 1 and one line per problem with file and JSON path."""
    path = tmp_path / f"config-{GARDENER_VERSION}.yaml"
    path.write_text('{"logLevel": 5, "kind": "x"}')
    assert cli.main([f"--config-dir={tmp_path}"], {}) == 1
    lines = capsys.readouterr().err.splitlines()
    assert f"error: {path}: logLevel: Input should be a valid string" in lines
    assert all(line.startswith(f"error: {path}: ") for line in lines)
    assert len(lines) >= 4


def test_kubeconfig_of_the_environment_wins(tmp_path: Path) -> None:
    """Contract 1.4: KUBECONFIG replaces clientConnection.kubeconfig."""
    import yaml

    (tmp_path / f"config-{GARDENER_VERSION}.yaml").write_text(
        yaml.safe_dump({**MINIMAL, "clientConnection": {"kubeconfig": "/a"}})
    )
    options = cli.parse([f"--config-dir={tmp_path}"], {})
    assert cli.load_config(options, {}, Paths(root=tmp_path))[1].client_connection.kubeconfig == "/a"
    assert cli.load_config(options, {"KUBECONFIG": "/b"}, Paths(root=tmp_path))[1].client_connection.kubeconfig == "/b"


def test_version_check_is_switched_off_by_the_environment(tmp_path: Path) -> None:
    """Contract 1.10: EXPERIMENTAL_DISABLE_KUBERNETES_VERSION_CHECK=true accepts any version."""
    import yaml

    from agents.core.config import ConfigError

    controllers = {"operatingSystemConfig": {"secretName": "x", "kubernetesVersion": "1.99.0"}}
    (tmp_path / f"config-{GARDENER_VERSION}.yaml").write_text(yaml.safe_dump({**MINIMAL, "controllers": controllers}))
    options = cli.parse([f"--config-dir={tmp_path}"], {})
    with pytest.raises(ConfigError):
        cli.load_config(options, {}, Paths(root=tmp_path))
    cli.load_config(options, {"EXPERIMENTAL_DISABLE_KUBERNETES_VERSION_CHECK": "true"}, Paths(root=tmp_path))
