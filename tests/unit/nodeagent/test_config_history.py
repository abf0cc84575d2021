"""A configuration file that is damaged, or written back by user data."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agents.core.config import ConfigError
from agents.core.generations import Generations, Origin
from nodeagent import cli, config_file
from nodeagent.config import NodeAgentConfiguration
from nodeagent.config_history import Note
from nodeagent.paths import Paths
from nodeagent.version import GARDENER_VERSION
from tests.unit.nodeagent.test_config import MINIMAL


def rendered(secret: str, version: str = "1.34.4") -> bytes:
    """Return a configuration file as gardenlet renders it."""
    controllers = {"operatingSystemConfig": {"secretName": secret, "kubernetesVersion": version}}
    return json.dumps({**MINIMAL, "controllers": controllers}).encode()


class Machine:
    """A machine whose agent is started again and again."""

    def __init__(self, root: Path) -> None:
        self.paths = Paths(root=root)
        self.file = self.paths.base / f"config-{GARDENER_VERSION}.yaml"
        self.paths.base.mkdir(parents=True)

    def start(self) -> tuple[NodeAgentConfiguration, tuple[Note, ...]]:
        """Return with what a new process runs, and what it says."""
        options = cli.parse([f"--config-dir={self.paths.base}"], {})
        _path, config, notes = cli.load_config(options, {}, self.paths)
        return config, notes

    def secret(self) -> str:
        """Return the name of the OSC Secret that a new process uses; it has nothing to say."""
        config, notes = self.start()
        assert notes == ()
        return config.controllers.operating_system_config.secret_name

    def applied(self, content: bytes) -> None:
        """Let the last applied OSC have this as the file's content."""
        file = {
            "path": "/" + str(self.file.relative_to(self.paths.root)),
            "content": {"inline": {"data": content.decode()}},
        }
        document: dict[str, Any] = {"spec": {"files": [file]}}
        self.paths.last_applied.write_text(json.dumps(document))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine that ran with one configuration and then got another one from its OSC."""
    found = Machine(tmp_path)
    for name in ("first", "second"):
        found.file.write_bytes(rendered(name))
        assert found.secret() == name
    found.applied(rendered("second"))
    return found


def test_user_data_that_runs_again_is_noticed(machine: Machine) -> None:
    """Contract 3: the first day's file comes back with a reboot: said, and the newest known one is used until the OSC's is there."""
    machine.file.write_bytes(rendered("first"))
    for _ in range(2):
        config, (note,) = machine.start()
        assert config.controllers.operating_system_config.secret_name == "second"
        assert note.reason == "ConfigurationWrittenBack"
        assert machine.file.read_bytes() == rendered("first")  # the OSC writes it again, nobody else
    machine.file.write_bytes(rendered("second"))
    assert machine.secret() == "second"


def test_an_osc_may_go_back_to_what_it_had(machine: Machine) -> None:
    """What the OSC wants is never taken for user data, and is the newest from then on."""
    machine.applied(rendered("first"))
    machine.file.write_bytes(rendered("first"))
    assert machine.secret() == "first"
    machine.applied(rendered("third"))
    assert machine.secret() == "first"


def test_the_osc_that_was_asked_for_counts_as_well(machine: Machine) -> None:
    """Killed after the file was written and before the OSC was applied to its end."""
    machine.file.write_bytes(rendered("first"))
    content = machine.paths.last_applied.read_text().replace("second", "first")
    machine.paths.desired.write_text(content)
    assert machine.secret() == "first"


def test_a_new_file_of_somebody_else_is_believed(machine: Machine) -> None:
    """A file that we never saw is neither damaged nor old."""
    machine.file.write_bytes(rendered("third"))
    assert machine.secret() == "third"


def test_our_own_rewriting_is_known(machine: Machine) -> None:
    """Contract 7.7: what the change of the Secret's name wrote is ours, and what it replaced is old."""
    generations = Generations(machine.paths.generations)
    config_file.write_secret_name(machine.file, "renamed", generations)
    assert generations.origin(machine.file, machine.file.read_bytes()) is Origin.OURS
    assert machine.secret() == "renamed"
    machine.paths.last_applied.unlink()
    machine.file.write_bytes(rendered("second"))
    _config, (note,) = machine.start()
    assert note.reason == "ConfigurationWrittenBack"


@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 50, rendered("second")[:60], b"[]", b"{}", rendered("x", "1.99.0"), None]
)
def test_a_damaged_file_does_not_end_the_agent(machine: Machine, content: bytes | None) -> None:
    """Contract 2, 9 W2: empty, torn, wrong or gone: the one before is used, the bad one is kept aside, and it is said."""
    machine.file.unlink()
    if content is not None:
        machine.file.write_bytes(content)
    config, (note,) = machine.start()
    assert config.controllers.operating_system_config.secret_name == "second"
    assert note.reason == "ConfigurationDamaged"
    aside = machine.file.with_name(f"{machine.file.name}.damaged")
    assert (aside.read_bytes() if content is not None else aside.exists() or None) == content
    assert ("is kept as" in note.text) is (content is not None)


def test_a_first_configuration_that_is_wrong_is_refused(tmp_path: Path) -> None:
    """Contract 2: without one from before it is an error, as ever."""
    machine = Machine(tmp_path)
    with pytest.raises(ConfigError):
        machine.start()
    machine.file.write_bytes(b"{}")
    with pytest.raises(ConfigError):
        machine.start()


def test_a_huge_file_counts_as_damaged(machine: Machine) -> None:
    """Contract 3: a configuration that somebody made a terabyte is not read; the one before stays in use."""
    os.truncate(machine.file, 2**40)
    config, (note,) = machine.start()
    assert config.controllers.operating_system_config.secret_name == "second"
    assert note.reason == "ConfigurationDamaged"
    assert "larger than" in note.text
