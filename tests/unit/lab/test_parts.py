"""Small parts of the lab that can be judged without one."""

import datetime as dt
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.lab.api import wait_for
from tests.lab.cli import main
from tests.lab.controlplane import Webhook, audit_policy, authorization_configuration, bootstrap_objects
from tests.lab.errors import ApiError, LabError
from tests.lab.faults import established_ports
from tests.lab.image import _RUNC_WRAPPER, may_lower_oom_score
from tests.lab.machine import inside_root
from tests.lab.network import MachineAddress, free_host_network, short_name
from tests.lab.scenario import Row, table
from tests.lab.tokens import new_token, token_secret

_TCP = (
    "  sl  local_address rem_address   st tx_queue rx_queue\n"
    "   0: 0B00C80A:D2A4 0100C80A:192B 01 00000000:00000000\n"
    "   1: 0B00C80A:D2A5 0100C80A:192B 06 00000000:00000000\n"
    "   2: 0B00C80A:D2A6 0100C80A:0050 01 00000000:00000000\n"
)


def test_only_established_connections_to_the_port_are_found() -> None:
    """A connection in another state or to another port is not dropped."""
    assert established_ports(_TCP, 6443) == [0xD2A4]


def test_host_network_avoids_what_is_in_use() -> None:
    """The first free /30 is taken; addresses of another family do not matter."""
    assert str(free_host_network([])) == "10.250.0.0/30"
    used = ["10.250.0.1/30", "10.250.0.6/30", "192.168.0.1/24", "fe80::1/64"]
    assert str(free_host_network(used)) == "10.250.0.8/30"
    with pytest.raises(LabError, match="in use"):
        free_host_network(["10.0.0.1/8"])


def test_machines_have_addresses_and_interfaces_of_their_own() -> None:
    """Addresses and Pod networks do not overlap; interface names fit the kernel's 15 characters."""
    assert (MachineAddress(0).address, MachineAddress(1).pod_network) == ("10.200.0.11", "10.201.1.0/24")
    names = {short_name("lab", "a"), short_name("lab", "b"), short_name("other", "a")}
    assert len(names) == 3
    assert max(map(len, names)) <= 15


@pytest.mark.parametrize(("bounding", "may"), [("000001ffffffffff", True), ("000001fffeffffff", False)])
def test_host_that_withholds_cap_sys_resource_is_noticed(bounding: str, may: bool) -> None:
    """Bit 24 of the bounding set decides whether runc needs its wrapper."""
    assert may_lower_oom_score(f"Name:\tx\nCapBnd:\t{bounding}\nCapAmb:\t0\n") is may


@pytest.mark.parametrize(
    "process",
    [
        {"oomScoreAdj": -998, "cwd": "/"},
        {"cwd": "/", "oomScoreAdj": -998},
        {"a": 1, "oomScoreAdj": -5, "b": 2},
        {"cwd": "/", "oomScoreAdj": 1000},
    ],
)
def test_runc_wrapper_takes_the_wish_out_of_the_bundle(tmp_path: Path, process: dict[str, object]) -> None:
    """Whatever the position in the JSON: a lowered oom_score_adj goes, the rest stays, runc gets all arguments."""
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "config.json").write_text(json.dumps({"process": process}, separators=(",", ":")))
    wrapper = tmp_path / "runc"
    wrapper.write_text(_RUNC_WRAPPER.replace("/usr/libexec/runc", "echo"))
    done = subprocess.run(
        ["sh", wrapper, "--root", "/r", "create", "--bundle", bundle, "id"], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["--root", "/r", "create", "--bundle", str(bundle), "id"]
    left = json.loads((bundle / "config.json").read_text())["process"]
    lowered = {key: value for key, value in process.items() if key != "oomScoreAdj" or value == 1000}
    assert left == lowered


def test_chain_of_authorizers_is_gardeners() -> None:
    """Counterparts contract 14.1: Node, RBAC, then the webhook, for node agents only, failing closed, without cache."""
    configuration = authorization_configuration(Webhook("https://hook"), Path("/k"))
    assert [a["type"] for a in configuration["authorizers"]] == ["Node", "RBAC", "Webhook"]
    webhook = configuration["authorizers"][2]["webhook"]
    assert (webhook["failurePolicy"], webhook["timeout"]) == ("Deny", "10s")
    assert (webhook["authorizedTTL"], webhook["unauthorizedTTL"]) == ("1ns", "1ns")
    assert "gardener.cloud:node-agents" in webhook["matchConditions"][0]["expression"]


def test_node_agents_get_no_rbac() -> None:
    """Counterparts contract 10.2: bootstrapping machines and nodes are bound to roles, the node agents' group never."""
    subjects = {subject["name"] for _, body in bootstrap_objects() for subject in body["subjects"]}
    assert subjects == {"system:bootstrappers", "system:nodes"}


def test_audit_log_has_agents_and_the_life_of_nodes() -> None:
    """What nobody looks at is not written; the first matching rule counts, so the last one drops the rest."""
    rules = audit_policy(["gardener.cloud:node-agents"])["rules"]
    assert "gardener.cloud:node-agents" in rules[0]["userGroups"]
    assert rules[-1] == {"level": "None"}


def test_token_is_well_formed_and_expires() -> None:
    """A bootstrap token may authenticate and sign, nothing more, and not for ever."""
    token = new_token()
    secret = token_secret(token, validity=dt.timedelta(minutes=5), now=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    identifier, value = token.split(".")
    assert (len(identifier), len(value)) == (6, 16)
    assert secret["metadata"]["name"] == f"bootstrap-token-{identifier}"
    assert secret["stringData"]["expiration"] == "2026-01-01T00:05:00Z"
    assert "auth-extra-groups" not in secret["stringData"]


def test_waiting_says_for_what_and_what_was_seen() -> None:
    """A timeout names what was waited for and what was seen last; errors of servers count as not yet."""
    with pytest.raises(LabError, match=r"waited 0\.01 s for the moon; last seen: '0'"):
        wait_for(lambda: 0, timeout=0.01, what="the moon", interval=0.001)

    def refused() -> bool:
        raise ApiError(503, "Unavailable", "try later")

    with pytest.raises(LabError, match="503"):
        wait_for(refused, timeout=0.01, what="x", interval=0.001)
    assert wait_for(lambda: "yes", timeout=1, what="x") == "yes"


def test_links_on_the_way_stay_inside_the_machine(tmp_path: Path) -> None:
    """An absolute link in a machine leads to the machine's folder, never to the host's; the last component is not followed."""
    (tmp_path / "run").mkdir()
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "run").symlink_to("/run")
    (tmp_path / "var" / "up").symlink_to("../../../run")
    (tmp_path / "var" / "loop").symlink_to("loop")
    assert inside_root(tmp_path, "/var/run/x") == tmp_path / "run" / "x"
    assert inside_root(tmp_path, "/var/up/x") == tmp_path / "run" / "x"
    assert inside_root(tmp_path, "/var/run") == tmp_path / "var" / "run"
    assert inside_root(tmp_path, "/") == tmp_path
    with pytest.raises(LabError, match="too many"):
        inside_root(tmp_path, "/var/loop/x")


def test_table_marks_the_rows_that_do_not_hold() -> None:
    """The closing table shows what, expected, seen, and which rows fail."""
    lines = table([Row("a", "1", "1"), Row("longer", "2", "3")]).splitlines()
    assert lines[0].split() == ["what", "expected", "seen"]
    assert "<--" not in lines[1]
    assert lines[2].endswith("<-- no")


@pytest.mark.skipif(os.geteuid() != 0, reason="without root the answer is another one")
@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (["node", "add", "x"], "is not up"),
        (["node", "reboot", "x"], "is not up"),
        (["shell", "x"], "is not up"),
        (["logs", "x"], "is not up"),
        (["--name", "a/b", "status"], "letters, digits and dashes"),
    ],
)
def test_impossible_command_gets_one_clear_line(
    command: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lab that is not up, a bad name: one line on stderr and exit code 1."""
    arguments = command if command[0] == "--name" else ["--name", "never-up", *command]
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert answer in error
    assert error.count("\n") == 1
