"""The command line: what is printed, and with which exit code."""

from pathlib import Path

import pytest
import yaml

from gardenlet import cli
from tests.unit.gardenlet.test_config import MINIMAL


@pytest.mark.parametrize(
    ("flag", "text"), [("--version", "gardenlet v1.150.0 (gardener-agents v0.1.0)\n"), ("--version=raw", "v1.150.0\n")]
)
def test_version_is_printed_before_anything_is_read(capsys: pytest.CaptureFixture[str], flag: str, text: str) -> None:
    """Contract core 1.1: --version and --version=raw print and exit 0, without a configuration."""
    with pytest.raises(SystemExit) as caught:
        cli.prepare([flag], {})
    assert (caught.value.code, capsys.readouterr().out) == (0, text)


@pytest.mark.parametrize(
    "arguments", [[], ["--config", ""], ["--config="], ["--config"], ["surprise"], ["--config=x", "y"], ["--version=x"]]
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Contract core 1.1, 1.7: --config is mandatory and not empty, positional arguments are refused; exit code 2."""
    with pytest.raises(SystemExit) as caught:
        cli.prepare(arguments, {})
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_each_problem_is_a_line_without_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Contract core 1.7: a bad configuration is exit code 2 and one line per problem with file and JSON path."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, "logLevel": "loud", "controllers": {"seed": {"leaseResyncSeconds": 0}}}))
    with pytest.raises(SystemExit) as caught:
        cli.prepare([f"--config={path}"], {})
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: {path}: logLevel: must be one of debug, info, error",
        f"error: {path}: controllers.seed.leaseResyncSeconds: must be at least 1",
    ]


def test_file_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Contract core 1.7: a configuration that cannot be read is exit code 2."""
    with pytest.raises(SystemExit) as caught:
        cli.prepare([f"--config={tmp_path}/none"], {})
    assert caught.value.code == 2
    assert "cannot be read: No such file or directory" in capsys.readouterr().err


def test_start_is_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Contract core 1.1: after validation version, flags and feature gates are logged, in the configured form."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, "logFormat": "text", "featureGates": {"RemoveVali": True}}))
    options, config = cli.prepare([f"--config={path}"], {"NAMESPACE": "garden", "POD_UID": "u"})
    line = capsys.readouterr().err.splitlines()[-1]
    assert "msg='Starting'" in line
    assert "gardenerVersion='v1.150.0'" in line
    assert "'RemoveVali': True" in line
    assert (options.pod_uid, options.self_hosted, config.log_format) == ("u", False, "text")
