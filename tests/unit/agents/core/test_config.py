"""Configuration files: all problems at once, with their paths."""

from datetime import timedelta
from pathlib import Path

import pytest

from agents.core.config import ConfigError, ConfigModel, Duration, load_config, unknown_keys


class Inner(ConfigModel):
    """A nested model."""

    sync_period: Duration = timedelta(minutes=10)


class Outer(ConfigModel):
    """The file."""

    port: int = 1
    inner: Inner = Inner()
    names: tuple[Inner, ...] = ()


def write(path: Path, text: str) -> Path:
    """Write a configuration file."""
    path.write_text(text)
    return path


def test_load_reads_camel_case_and_go_durations(tmp_path: Path) -> None:
    """Keys are camelCase, durations are Go strings, lists become tuples, unknown keys are tolerated."""
    config = load_config(write(tmp_path / "c", "inner: {syncPeriod: 1h}\nnames: [{}]\nnewer: 1"), Outer)
    assert config.inner.sync_period == timedelta(hours=1)
    assert config.names == (Inner(),)
    assert config.inner.model_dump(by_alias=True) == {"syncPeriod": "1h0m0s"}


def test_load_reports_all_problems_with_their_paths(tmp_path: Path) -> None:
    """Wrong types are one error with one line for each, and no value in it."""
    text = "port: 'secret'\ninner: {syncPeriod: soon}\nnames: [{syncPeriod: 5}, {}]"
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path / "c", text), Outer)
    assert [line.split(":")[0] for line in caught.value.problems] == ["port", "inner.syncPeriod", "names[0].syncPeriod"]
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["[1]", "a: [", "null"])
def test_load_refuses_what_is_no_object(tmp_path: Path, text: str) -> None:
    """A file that is no YAML object is one problem."""
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path / "c", text), Outer)
    assert len(caught.value.problems) == 1


def test_load_says_that_the_file_is_missing(tmp_path: Path) -> None:
    """A missing file is named with the reason."""
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none", Outer)


def test_unknown_keys_are_found_at_any_depth() -> None:
    """Each key that the model does not know is reported with its path."""
    assert list(unknown_keys({"port": 1, "x": 1, "inner": {"y": 2, "syncPeriod": "1h"}}, Outer)) == ["x", "inner.y"]
    assert list(unknown_keys([1], Outer)) == []
