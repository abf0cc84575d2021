"""`python -m tests.lab`: a lab for hands and eyes. One clear line on stderr and exit code 1 when something is not possible."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.lab.binaries import find_binaries
from tests.lab.capability import why_no_lab
from tests.lab.cluster import DEFAULT_NAME, Lab
from tests.lab.debian import old_root
from tests.lab.demo import run_demo
from tests.lab.errors import LabError
from tests.lab.garden.story import run_demo as run_seed_demo
from tests.lab.packages import TOOLS, ensure_tools
from tests.lab.pause import pause_archive
from tests.lab.progress import Stopwatch, to_stderr
from tests.lab.prometheus import TOOL as PROMETHEUS
from tests.lab.state import Ledger, locked
from tests.lab.userdata import hand_user_data, run_init_unit
from tests.lab.watched import draw_pictures
from tests.lab.worker_osc import AGENT_UNIT, WorkerOsc


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    parsed = _parser().parse_args(arguments)
    try:
        reason = why_no_lab()
        if reason is not None:
            raise LabError(reason)
        code: int = parsed.run(parsed)
    except LabError as error:
        to_stderr(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        to_stderr("interrupted; what was started has been ended")
        return 130
    return code


def _interrupt(*_: object) -> None:
    """Treat SIGTERM like Ctrl-C: `finally` clauses take the lab down."""
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab", description="A real Kubernetes cluster with real machines on this host."
    )
    parser.add_argument("--name", default=None, help=f"name of the lab (default: LAB_NAME, else {DEFAULT_NAME!r})")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _command(
        commands,
        "prepare",
        _prepare,
        "bring what is missing: packages, Kubernetes, the pause image; needs a network once",
    )
    _command(commands, "up", _up, "start the control plane")
    node = commands.add_parser("node", help="machines").add_subparsers(required=True, metavar="COMMAND")
    add = _command(node, "add", _node_add, "boot a machine, and let the node agent join it with --join")
    add.add_argument("node", metavar="NAME")
    add.add_argument("--storage", choices=("tmpfs", "ext4"), default="tmpfs")
    add.add_argument(
        "--join",
        action="store_true",
        help="hand it user data, which brings the agent and runs gardener-node-agent bootstrap",
    )
    _agent_option(add)
    reboot = _command(node, "reboot", _node_reboot, "restart a machine on its disk")
    reboot.add_argument("node", metavar="NAME")
    reboot.add_argument("--power", action="store_true", help="cut the power instead of shutting down")
    shell = _command(commands, "shell", _shell, "open a shell in a machine")
    shell.add_argument("node", metavar="NAME")
    logs = _command(commands, "logs", _logs, "print a unit's journal")
    logs.add_argument("node", metavar="NAME")
    logs.add_argument("--unit", default=AGENT_UNIT)
    _command(commands, "down", _down, "end and remove everything")
    _command(commands, "status", _status, "what is up")
    demo = _command(commands, "demo", _demo, "a machine joins, changes, crashes and heals")
    _command(commands, "demo-seed", _demo_seed, "a gardenlet registers its seed, beats, renews and survives")
    pictures = _command(commands, "pictures", _pictures, "tell both stories under a Prometheus and draw docs/pictures")
    pictures.add_argument("--output", type=Path, default=Path("docs/pictures"))
    _agent_option(pictures)
    demo.add_argument("--keep", action="store_true", help="leave the lab up")
    _agent_option(demo)
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, run: object, text: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run)
    return parser


def _agent_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--agent", choices=("binary", "source"), default="binary", help="one-file binary, or the source tree"
    )


def _lab(parsed: argparse.Namespace) -> Lab:
    return Lab(parsed.name, say=to_stderr)


def _prepare(_parsed: argparse.Namespace) -> int:
    ensure_tools(say=to_stderr, tools=(*TOOLS, PROMETHEUS))
    find_binaries(say=to_stderr)
    pause_archive()
    old_root(to_stderr)
    return 0


def _up(parsed: argparse.Namespace) -> int:
    lab, watch = _lab(parsed), Stopwatch()
    with locked(lab.name):
        lab.up(keep=True)
    kubeconfig = lab.control_plane.kubeconfig(lab.ledger.directory / "admin.kubeconfig")
    watch(f"lab {lab.name!r} is up; export KUBECONFIG={kubeconfig}")
    return 0


def _node_add(parsed: argparse.Namespace) -> int:
    lab, watch = _lab(parsed), Stopwatch()
    with locked(lab.name):
        lab.require_up()
        agent = lab.agent(parsed.agent)
        pool = lab.pool(agent) if parsed.join else None
        machine = lab.add_machine(parsed.node, storage=parsed.storage)
        watch(f"machine {machine.name} runs at {machine.address}")
        if pool is not None:
            if lab.api.find(f"/api/v1/namespaces/kube-system/secrets/{pool.secret_name}") is None:
                lab.publish_osc(WorkerOsc.for_pool(pool))
            hand_user_data(machine, lab, agent=agent, pool=pool)
            run_init_unit(machine)
            watch("user data has brought the agent, which has bootstrapped; see: logs " + machine.name)
    return 0


def _node_reboot(parsed: argparse.Namespace) -> int:
    lab, watch = _lab(parsed), Stopwatch()
    with locked(lab.name):
        machine = lab.machine(parsed.node)
        if machine.running():
            machine.reboot(graceful=not parsed.power)
        else:
            machine.boot()
    watch(f"machine {machine.name} runs again")
    return 0


def _shell(parsed: argparse.Namespace) -> int:
    machine = _lab(parsed).machine(parsed.node)
    command = machine.command(["bash", "-l"], env={"TERM": os.environ.get("TERM", "dumb"), "PS1": f"{machine.name}# "})
    return subprocess.run(command, check=False).returncode


def _logs(parsed: argparse.Namespace) -> int:
    print(_lab(parsed).machine(parsed.node).journal(parsed.unit), end="")
    return 0


def _down(parsed: argparse.Namespace) -> int:
    lab = _lab(parsed)
    with locked(lab.name):
        existed = lab.ledger.exists()
        lab.down()
    to_stderr(f"lab {lab.name!r} is removed" if existed else f"lab {lab.name!r} was not there")
    return 0


def _status(parsed: argparse.Namespace) -> int:
    lab = _lab(parsed)
    if not lab.is_up():
        print(f"lab {lab.name!r} is not up")
        return 0
    nodes = {node["metadata"]["name"] for node in lab.api.list("/api/v1/nodes")}
    print(f"lab {lab.name!r} is up at {lab.control_plane.server}")
    for name, machine in lab.machines.items():
        state = f"pid {machine.pid1}" if machine.running() else "off"
        print(f"  {name}  {machine.address}  {state}  {'node' if name in nodes else 'no node'}")
    return 0


def _demo_seed(_parsed: argparse.Namespace) -> int:
    return run_seed_demo(Ledger(f"seed-{os.getpid()}"), say=_print)


def _demo(parsed: argparse.Namespace) -> int:
    lab = _lab(parsed)
    with locked(lab.name):
        return run_demo(lab, agent=parsed.agent, keep=parsed.keep, say=_print)


def _pictures(parsed: argparse.Namespace) -> int:
    lab = _lab(parsed)
    with locked(lab.name):
        ledger = Ledger(f"seed-{os.getpid()}")
        return draw_pictures(lab, agent=parsed.agent, ledger=ledger, output=parsed.output, say=Stopwatch(_print))


def _print(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
