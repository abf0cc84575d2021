"""What user data brings to a machine, and no more: contract 8.1, with the modes of section 3.

Two ways lead to the agent. `hand_user_data` and `run_init_unit` are Gardener's: user data has a unit and a script, and these get the
agent out of its image. `hand_program` and `run_bootstrap` are for tests that are about something else: the program is copied.
"""

from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.errors import LabError
from tests.lab.machine import Machine
from tests.lab.node_init import CA_UPDATE_SCRIPT, INIT_SCRIPT, ca_update_script, init_script, init_unit
from tests.lab.worker_osc import AGENT_BINARY, AGENT_FOLDER, CLUSTER_CA_FILE, INIT_UNIT, WorkerPool

TOKEN_FILE = f"{AGENT_FOLDER}/credentials/bootstrap-token"
MACHINE_NAME_FILE = f"{AGENT_FOLDER}/machine-name"
_INIT_SECONDS = 120.0


def hand_user_data(
    machine: Machine, lab: Lab, *, agent: AgentSource, pool: WorkerPool | None = None, token: str | None = None
) -> WorkerPool:
    """Put unit and script, config file, machine name, bootstrap token and cluster CA on a machine; nothing runs yet.

    Args:
        machine: a running machine.
        lab: its lab.
        agent: what the pool's image has.
        pool: the pool it joins; None for the lab's default one.
        token: bootstrap token; None creates one.

    Returns:
        The pool.
    """
    pool = _hand_files(machine, lab, agent, pool, token)
    if pool.images is None:
        raise LabError(f"pool {pool.name} has no images to get the agent from")
    lab.publish_registry_ca(pool.images.ca_pem)
    agent.bring_library(machine)
    machine.write(CA_UPDATE_SCRIPT, ca_update_script().encode(), 0o755)
    machine.write(INIT_SCRIPT, init_script(image=pool.images.node_agent, server=pool.server).encode(), 0o755)
    machine.write(f"/etc/systemd/system/{INIT_UNIT}", init_unit().encode(), 0o644)
    return pool


def start_init_unit(machine: Machine) -> None:
    """Do what an operating system does with the units of user data."""
    machine.systemctl("daemon-reload")
    machine.systemctl("enable", INIT_UNIT)
    machine.systemctl("start", "--no-block", INIT_UNIT)


def wait_init_unit(machine: Machine) -> dict[str, str]:
    """Wait until the init unit has come to its end, as bootstrap has disabled it; returns its properties.

    Raises:
        LabError: it does not; says what it printed.
    """

    def ended() -> dict[str, str] | None:
        # Asked of the disk: systemd does not read it again only because a unit was disabled.
        disabled = machine.systemctl("is-enabled", INIT_UNIT, check=False) == "disabled"
        unit = machine.unit(INIT_UNIT)
        return unit if disabled and unit["ActiveState"] == "inactive" else None

    try:
        return wait_for(ended, timeout=_INIT_SECONDS, what=f"the end of {INIT_UNIT}")
    except LabError as error:
        raise LabError(f"{error}\n{machine.journal(INIT_UNIT, lines=30)}") from error


def run_init_unit(machine: Machine) -> None:
    """Start the init unit and wait until it has come to its end."""
    start_init_unit(machine)
    wait_init_unit(machine)


def hand_program(
    machine: Machine, lab: Lab, *, agent: AgentSource, pool: WorkerPool | None = None, token: str | None = None
) -> WorkerPool:
    """Put the agent itself on a machine, and the files of user data; arguments as for `hand_user_data`."""
    pool = _hand_files(machine, lab, agent, pool, token)
    agent.install(machine)
    return pool


def run_bootstrap(machine: Machine) -> str:
    """Run `gardener-node-agent bootstrap` to its end and return what it printed."""
    done = machine.run([AGENT_BINARY, "bootstrap", f"--config-dir={AGENT_FOLDER}"], timeout=120)
    return done.stdout + done.stderr


def _hand_files(
    machine: Machine, lab: Lab, agent: AgentSource, pool: WorkerPool | None, token: str | None
) -> WorkerPool:
    pool = pool or lab.pool(agent)
    machine.write(pool.agent_config_path, pool.agent_config().encode(), 0o600)
    machine.write(CLUSTER_CA_FILE, pool.ca_pem.encode(), 0o640)
    machine.write(MACHINE_NAME_FILE, machine.name.encode(), 0o640)
    machine.write(TOKEN_FILE, (token or lab.create_bootstrap_token()).encode(), 0o640)
    return pool
