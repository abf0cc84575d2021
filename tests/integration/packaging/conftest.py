"""Small programs with the real launcher, packed by the real builder."""

from pathlib import Path

import pytest

from tests.support.onefile import Parts, Root


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two versions of a small program."""
    parts, folder = Parts.fetch(), tmp_path_factory.mktemp("programs")
    return {version: parts.program(folder / version, version) for version in ("v1", "v2")}


@pytest.fixture
def v1(programs: dict[str, Path]) -> Path:
    """The first version."""
    return programs["v1"]


@pytest.fixture
def root(tmp_path: Path, v1: Path) -> Root:
    """A root with the first version installed."""
    made = Root(tmp_path / "root").create()
    made.install(v1)
    return made
