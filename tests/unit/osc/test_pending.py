"""The pending-changes file: GNA's schema, the private key, and what counts as damaged."""

import json

import pytest

from agents.core.errors import TerminalError
from osc.codec import dump_state
from osc.diff import Changes, OwnRestart, Touched, TouchedUnit, UnitChange, UnitCommand
from osc.pending import Pending, TornPending, decode_pending, encode_pending
from osc.types import DropIn, File, FileContent, Inline, Registry, Unit

OWN = "gardener-node-agent.service"
FALSE_FLAGS = {
    "containerd": {"configFileChanged": False, "registries": {}},
    "inPlaceUpdates": {
        "operatingSystem": False,
        "serviceAccountKeyRotation": False,
        "kubelet": {"minorVersion": False, "config": False, "cpuManagerPolicy": False},
        "certificateAuthoritiesRotation": {"kubelet": False, "nodeAgent": False},
    },
}
FULL = Pending(
    checksum="c",
    changes=Changes(
        files_changed=(File(path="/a", content=FileContent(inline=Inline(data="ü\u2028\x85\U0001f600"))),),
        files_deleted=(File(path="/b" * 2000),),
        units_changed=(
            UnitChange(
                Unit(name="u", drop_ins=(DropIn(name="d", content="1"),)),
                (DropIn(name="d", content="1"),),
                (DropIn(name="e"),),
                file_removed=True,
            ),
        ),
        units_deleted=(Unit(name="v", content=""),),
        commands=(UnitCommand("u", "restart"), UnitCommand("w", "stop")),
        file_users={"/b" * 2000: ("v",)},
        reload=True,
        own_restart=OwnRestart.REQUIRED,
    ),
    touched=Touched(frozenset({"/a"}), {"u": TouchedUnit(created=True, drop_ins=frozenset({"d"}))}),
    secret_digests={"/s": "digest"},
    sequence=7,
)


def test_file_reads_back() -> None:
    """Contract 6.4: what is written is read back the same."""
    assert decode_pending(encode_pending(FULL)) == FULL
    assert FULL.unfinished


def test_file_has_the_go_agents_schema() -> None:
    """Contract 6.4: the Go agent's keys, complete objects, booleans always there."""
    document = json.loads(encode_pending(FULL))
    assert document.pop("x-journal")
    assert document == {
        "operatingSystemConfigChecksum": "c",
        "mustRestartNodeAgent": True,
        "files": {
            "changed": [{"path": "/a", "content": {"inline": {"encoding": "", "data": "ü\u2028\x85\U0001f600"}}}],
            "deleted": [{"path": "/b" * 2000, "content": {}}],
        },
        "units": {
            "changed": [
                {
                    "name": "u",
                    "dropIns": [{"name": "d", "content": "1"}],
                    "dropInsChanges": {
                        "changed": [{"name": "d", "content": "1"}],
                        "deleted": [{"name": "e", "content": ""}],
                    },
                }
            ],
            "deleted": [{"name": "v", "content": ""}],
            "commands": [{"name": "u", "command": "restart"}, {"name": "w", "command": "stop"}],
        },
        **FALSE_FLAGS,
    }


def test_after_a_complete_run_only_the_checksum_and_false_flags_remain() -> None:
    """Contract 6.4: lists are omitted when empty, booleans are always there."""
    document = json.loads(encode_pending(Pending("c")))
    assert document.pop("x-journal")
    assert document == {
        "operatingSystemConfigChecksum": "c",
        "mustRestartNodeAgent": False,
        "files": {},
        "units": {},
        **FALSE_FLAGS,
    }
    assert not Pending("c").unfinished


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_w04_truncated_file_is_recognised(share: float) -> None:
    """Contract 9 W4: a cut-off file counts as none, wherever the cut is."""
    content = encode_pending(FULL)
    with pytest.raises(TornPending):
        decode_pending(content[: int(len(content) * share)])


def test_w04_changed_file_is_recognised_by_its_digest() -> None:
    """Contract 9 W4: a file that does not match its digest counts as none, though it is valid."""
    content = encode_pending(FULL)
    assert issubclass(TornPending, TerminalError)
    with pytest.raises(TornPending, match="digest"):
        decode_pending(content.replace(b'"name":"w"', b'"name":"x"'))


def test_file_of_an_unknown_version_counts_as_none() -> None:
    """Contract 6.4 d: a newer agent's journal is not guessed at."""
    with pytest.raises(TornPending, match="version"):
        decode_pending(b'{"operatingSystemConfigChecksum":"c","x-journal":{"version":2}}')


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"null",
        b"[]",
        b"text",
        b"\x00\x00\x00",
        b"operatingSystemConfigChecksum: [",
        b"files: {changed: [1]}",
        b"units: {commands: [{name: u, command: reload}]}",
        b"x-journal: []",
    ],
)
def test_damaged_file_counts_as_none(content: bytes) -> None:
    """Contract 6.4 d: what is empty, unreadable or of another form is no file."""
    with pytest.raises(TornPending):
        decode_pending(content)


GNA_FILE = b"""
containerd:
  configFileChanged: true
  registries:
    desired:
    - upstream: docker.io
files:
  changed:
  - content:
      inline:
        data: x
        encoding: ""
    path: /a
  - content: {}
    path: ""
  deleted:
  - content: {}
    path: ""
inPlaceUpdates: null
mustRestartNodeAgent: false
operatingSystemConfigChecksum: c
units:
  changed:
  - name: u
    dropInsChanges:
      changed:
      - name: ""
        content: ""
      - name: d
        content: x
  - name: ""
  commands:
  - command: restart
    name: u
  - command: ""
    name: v
  - command: restart
    name: ""
  - command: restart
    name: gardener-node-agent.service
  deleted:
  - name: w
    dropIns:
    - name: ""
      content: ""
  - name: ""
"""


def test_file_of_the_go_agent_is_taken_over() -> None:
    """Contract 6.4 c, W1: entries with empty names are ignored, commands that are done too; its flags are kept."""
    pending = decode_pending(GNA_FILE)
    assert pending.foreign
    assert pending.unfinished
    assert pending.changes == Changes(
        files_changed=(File(path="/a", content=FileContent(inline=Inline(data="x"))),),
        units_changed=(UnitChange(Unit(name="u"), (DropIn(name="d", content="x"),)),),
        units_deleted=(Unit(name="w"),),
        commands=(UnitCommand("u", "restart"), UnitCommand("containerd.service", "restart")),
        containerd_config=True,
        registries_desired=(Registry(upstream="docker.io"),),
        reload=True,
        own_restart=OwnRestart.REQUIRED,
    )
    document = json.loads(encode_pending(pending))
    assert document["containerd"] == {"configFileChanged": True, "registries": {"desired": [{"upstream": "docker.io"}]}}
    assert document["inPlaceUpdates"] == FALSE_FLAGS["inPlaceUpdates"]


def test_finished_file_of_the_go_agent_leaves_nothing_to_do() -> None:
    """Contract 6.4: the Go agent's file after a complete run has nothing left."""
    pending = decode_pending(b"mustRestartNodeAgent: false\noperatingSystemConfigChecksum: c\nfiles: {}\nunits: {}\n")
    assert (pending.checksum, pending.changes, pending.unfinished) == ("c", Changes(), False)


def test_conditional_restart_becomes_required_in_the_next_process() -> None:
    """Contract 1.8: whether bytes changed was known to a process that has ended, so the next one restarts for certain."""
    pending = Pending("c", Changes(own_restart=OwnRestart.IF_CHANGED))
    assert json.loads(encode_pending(pending))["mustRestartNodeAgent"]
    assert decode_pending(encode_pending(pending)).changes.own_restart is OwnRestart.REQUIRED
    assert decode_pending(b"{mustRestartNodeAgent: true}").changes.own_restart is OwnRestart.REQUIRED


def test_content_that_looks_like_the_private_key_does_no_harm() -> None:
    """Contract 6.4: the digest is put into the private key, whatever strings the items hold."""
    trap = '"x-journal":{"digest":""'
    pending = Pending(trap, Changes(files_changed=(File(path=trap),)), Touched(frozenset({trap})))
    assert decode_pending(encode_pending(pending)) == pending
    assert dump_state({"a": trap})
