"""What user data brings to a machine, and no more: contract 8.1, with the modes of section 3."""

from tests.lab.agent import AgentSource
from tests.lab.cluster import Lab
from tests.lab.machine import Machine
from tests.lab.worker_osc import AGENT_BINARY, AGENT_FOLDER, CLUSTER_CA_FILE, WorkerPool

TOKEN_FILE = f"{AGENT_FOLDER}/credentials/bootstrap-token"
MACHINE_NAME_FILE = f"{AGENT_FOLDER}/machine-name"


def hand_user_data(
    machine: Machine, lab: Lab, *, agent: AgentSource, pool: WorkerPool | None = None, token: str | None = None
) -> WorkerPool:
    """Put agent, config file, machine name, bootstrap token and cluster CA on a machine.

    Args:
        machine: a running machine.
        lab: its lab.
        agent: what becomes `/opt/bin/gardener-node-agent`.
        pool: the pool it joins; None for the lab's default one.
        token: bootstrap token; None creates one.

    Returns:
        The pool.
    """
    pool = pool or lab.pool(agent)
    agent.install(machine)
    machine.write(pool.agent_config_path, pool.agent_config().encode(), 0o600)
    machine.write(CLUSTER_CA_FILE, pool.ca_pem.encode(), 0o640)
    machine.write(MACHINE_NAME_FILE, machine.name.encode(), 0o640)
    machine.write(TOKEN_FILE, (token or lab.create_bootstrap_token()).encode(), 0o640)
    return pool


def run_bootstrap(machine: Machine) -> str:
    """Run `gardener-node-agent bootstrap` to its end and return what it printed."""
    done = machine.run([AGENT_BINARY, "bootstrap", f"--config-dir={AGENT_FOLDER}"], timeout=120)
    return done.stdout + done.stderr
