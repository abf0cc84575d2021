"""`python -m tests.lab demo`: the scenario with a lab of its own, for a person who watches."""

from tests.lab import state
from tests.lab.cluster import Lab
from tests.lab.errors import LabError
from tests.lab.progress import Say
from tests.lab.scenario import Scenario, table


def run_demo(lab: Lab, *, agent: str, keep: bool, say: Say) -> int:
    """Start a lab, tell the story, take the lab down; returns the exit code.

    Args:
        lab: not up yet.
        agent: `binary` or `source`.
        keep: leave the lab up.
        say: gets every line.
    """
    say("Starting a control plane (etcd, kube-apiserver, kube-controller-manager, authorizer, CSR approver) ...")
    lab.agent(agent).version()  # no agent, no demo: say so before anything else takes time
    lab.up()
    scenario = Scenario(lab, lab.agent(agent), say)
    kept = False
    try:
        try:
            machine = scenario.run()
        except LabError as error:
            say(f"\nThe story ended early: {error}")
            _say_agent_log(lab, scenario, say)
            return 1
        say("\n" + table(scenario.rows) + "\n")
        good = all(row.holds for row in scenario.rows)
        say("Every row holds." if good else "Not every row holds.")
        if not good:
            _say_agent_log(lab, scenario, say)
        if keep:
            state.release(lab.ledger)
            kept = True
            say(f"The lab stays up. A shell in the machine: make lab-shell NODE={machine.name}; the end: make lab-down")
        return 0 if good else 1
    finally:
        if not kept:
            lab.down()


def _say_agent_log(lab: Lab, scenario: Scenario, say: Say) -> None:
    machine = lab.machines.get(scenario.machine_name)
    if machine is not None and machine.running():
        say("\nThe agent's last log lines:")
        say(machine.journal("gardener-node-agent.service", lines=30))
