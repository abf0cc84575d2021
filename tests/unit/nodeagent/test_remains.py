"""What a reset may remove: what was applied, what was applied in part, and nothing else."""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from agents.core.generations import Generations
from nodeagent.host.originals import Originals
from nodeagent.paths import Paths
from nodeagent.remains import NothingKnown, Remains, UnitRemains, find_remains
from osc.codec import decode_document, dump_state
from osc.diff import diff
from osc.journal import Journal
from osc.merge import Effective, effective
from osc.plan import plan
from tests.support.clock import FakeClock

HOSTNAME = "worker-1"
OWN = UnitRemains("gardener-node-agent.service", True, ())


def document(
    *,
    files: Sequence[Mapping[str, Any]] = (),
    units: Sequence[Mapping[str, Any]] = (),
    status: Mapping[str, Any] | None = None,
    registries: Sequence[str] = (),
) -> dict[str, Any]:
    """Return an OSC."""
    spec: dict[str, Any] = {"files": list(files), "units": list(units)}
    if registries:
        containerd = {"sandboxImage": "x", "registries": [{"upstream": name, "hosts": []} for name in registries]}
        spec["criConfig"] = {"name": "containerd", "containerd": containerd}
    return {
        "apiVersion": "extensions.gardener.cloud/v1alpha1",
        "kind": "OperatingSystemConfig",
        "spec": spec,
        "status": status or {},
    }


def file(path: str, text: str = "ours", **fields: Any) -> dict[str, Any]:
    """Return an inline file."""
    return {"path": path, "content": {"inline": {"encoding": "", "data": text}}, **fields}


class Node:
    """A disk with state files."""

    def __init__(self, root: Path) -> None:
        self.paths = Paths(root=root)
        self.root = root

    def journal(self) -> Journal:
        """Return a journal as a new process has it."""
        return Journal(
            pending_path=self.paths.pending_changes,
            last_applied_path=self.paths.last_applied,
            generations=Generations(self.paths.generations),
            clock=FakeClock(),
        )

    def applied(self, osc: Mapping[str, Any]) -> None:
        """Record that an OSC was applied to its end."""
        journal = self.journal()
        journal.begin("applied", diff(self.effective(osc), old=None))
        for step in plan(diff(self.effective(osc), old=None), self.effective(osc)).steps:
            journal.done(step)
        journal.commit(osc)

    def begun(
        self,
        osc: Mapping[str, Any],
        *,
        old: Mapping[str, Any] | None = None,
        done: Sequence[str] = (),
        digests: Mapping[str, str] | None = None,
    ) -> None:
        """Record that an apply began, and which of its steps were done."""
        journal = self.journal()
        loaded = journal.load()
        touched = loaded.pending.touched if loaded.pending else None
        changes = diff(self.effective(osc), old=None if old is None else self.effective(old), touched=touched)
        journal.begin(sha256(dump_state(osc)).hexdigest(), changes, touched=touched, secret_digests=digests)
        journal.done(*(step for step in plan(changes, self.effective(osc)).steps if step.id in done))
        journal.flush(sync=True)

    def desire(self, osc: Mapping[str, Any]) -> None:
        """Keep an OSC for operators."""
        self.write(str(self.paths.desired.relative_to(self.root)), dump_state(osc).decode())

    def effective(self, osc: Mapping[str, Any]) -> Effective:
        """Return what of an OSC is for this host."""
        return effective(decode_document(osc).config, hostname=HOSTNAME)

    def write(self, path: str, text: str) -> None:
        """Write a file of the machine."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def remains(self) -> Remains:
        """Run the part of the product."""
        return find_remains(
            journal=self.journal(),
            originals=self.originals(),
            desired=self.paths.desired,
            hostname=HOSTNAME,
            root=self.root,
        )

    def originals(self) -> Originals:
        """Return what is kept, as a new process sees it."""
        return Originals(folder=self.paths.originals, root=self.root)

    def let_another_agent_write(self) -> None:
        """Leave the journal as Gardener's agent does: without the private part."""
        document = json.loads(self.paths.pending_changes.read_text())
        del document["x-journal"]
        self.paths.pending_changes.write_text(json.dumps(document))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A disk without any state."""
    return Node(tmp_path)


def test_without_any_state_only_the_own_unit_is_ours(node: Node) -> None:
    """Contract 8.4: no last-applied is no error; the unit that `bootstrap` wrote is ours in any case."""
    assert node.remains() == Remains(units=(OWN,))


def test_all_of_last_applied_is_ours(node: Node) -> None:
    """Contract 8.4, 9 W41: files and units of spec and extension; units without content only with drop-ins; the own unit last."""
    status = {
        "extensionFiles": [file("/etc/extension")],
        "extensionUnits": [
            {"name": "ext.service", "content": "x"},
            {"name": "os.service", "dropIns": [{"name": "b.conf", "content": "b"}]},
        ],
    }
    units = [
        {"name": "gardener-node-agent.service", "content": "x", "dropIns": [{"name": "own.conf", "content": "o"}]},
        {"name": "os.service", "command": "restart", "dropIns": [{"name": "a.conf", "content": "a"}]},
        {"name": "ours.service", "content": "x", "dropIns": [{"name": "c.conf", "content": "c"}]},
    ]
    node.applied(document(files=[file("/etc/one")], units=units, status=status, registries=["docker.io"]))
    assert node.remains() == Remains(
        files=("/etc/extension", "/etc/one"),
        units=(
            UnitRemains("ext.service", True, ()),
            UnitRemains("os.service", False, ("a.conf", "b.conf")),
            UnitRemains("ours.service", True, ("c.conf",)),
            UnitRemains("gardener-node-agent.service", True, ("own.conf",)),
        ),
        registries=("docker.io",),
    )


def test_w41_files_of_other_hosts_are_not_ours(node: Node) -> None:
    """Contract 9 W41: a file for another host was never written here; what lies in its place is somebody else's."""
    node.applied(document(files=[file("/etc/mine", hostName=HOSTNAME), file("/etc/other", hostName="worker-2")]))
    assert node.remains().files == ("/etc/mine",)


def test_what_an_unfinished_apply_did_is_ours(node: Node) -> None:
    """Contract 6.4 b, 8.4: done steps count, also of an OSC that was superseded before its end (W10)."""
    first, second = (
        document(files=[file("/etc/v1")]),
        document(files=[file("/etc/v2")], units=[{"name": "v2.service", "content": "x"}]),
    )
    node.applied(first)
    node.begun(second, old=first, done=["write-file:/etc/v2", "write-unit:v2.service", "enable-unit:v2.service"])
    node.begun(document(files=[file("/etc/v3")]), old=first)
    node.write("/etc/v3", "ours")  # and killed before that was recorded
    found = node.remains()
    assert found.files == ("/etc/v1", "/etc/v2", "/etc/v3")
    assert found.units == (UnitRemains("v2.service", True, ()), OWN)


def test_what_an_apply_was_about_to_do_is_ours(node: Node) -> None:
    """Contract 6.4 b, 8.4: for what was there before us there is an original; so also what was not written yet may go."""
    node.write("/etc/os", "of the operating system")
    node.originals().keep(["/etc/os"])
    node.begun(document(files=[file("/etc/os"), file("/etc/new")], units=[{"name": "new.service", "content": "x"}]))
    node.write("/etc/new", "of an OSC that was superseded")
    found = node.remains()
    assert (found.files, found.unproven) == (("/etc/new", "/etc/os"), ())
    assert found.units == (UnitRemains("new.service", True, ()), OWN)


def test_what_an_original_is_kept_of_is_ours(node: Node) -> None:
    """Contract 8.4: containerd's configuration is in no list of an OSC, but we changed it."""
    node.write("/etc/containerd/config.toml", "before")
    node.originals().keep_first("/etc/containerd/config.toml")
    assert node.remains().files == ("/etc/containerd/config.toml",)


def test_what_another_agent_had_not_written_yet_is_the_operating_systems(node: Node) -> None:
    """Contract 8.4: that agent keeps no originals; a path on its list is ours only if it has the content, else it is left, and named."""
    units: list[dict[str, Any]] = [
        {
            "name": "new.service",
            "content": "new",
            "dropIns": [{"name": "a.conf", "content": "a"}, {"name": "b.conf", "content": "b"}],
        },
        {"name": "done.service", "content": "done"},
    ]
    node.begun(document(files=[file("/etc/os"), file("/etc/ours"), file("/etc/missing")], units=units))
    node.let_another_agent_write()
    node.write("/etc/os", "of the operating system")
    node.write("/etc/ours", "ours")
    node.write("/etc/systemd/system/new.service", "of an administrator")
    node.write("/etc/systemd/system/new.service.d/a.conf", "a")
    node.write("/etc/systemd/system/new.service.d/b.conf", "of an administrator")
    node.write("/etc/systemd/system/done.service", "done")
    found = node.remains()
    assert found.files == ("/etc/ours",)
    assert found.units == (UnitRemains("done.service", True, ()), UnitRemains("new.service", False, ("a.conf",)), OWN)
    assert found.unproven == (
        "/etc/os",
        "/etc/systemd/system/new.service",
        "/etc/systemd/system/new.service.d/b.conf",
    )


def test_contents_from_elsewhere_are_known_by_digest_or_not_at_all(node: Node) -> None:
    """Contract 8.4: of another agent's list, files out of Secrets and images that are there are left: nobody knows their bytes."""
    secret = {"path": "/etc/secret", "content": {"secretRef": {"name": "s", "dataKey": "k"}}}
    image = {"path": "/opt/bin/kubelet", "content": {"imageRef": {"image": "i", "filePathInImage": "/kubelet"}}}
    node.begun(document(files=[secret, image]))
    node.let_another_agent_write()
    node.write("/etc/secret", "token")
    node.write("/opt/bin/kubelet", "binary")
    found = node.remains()
    assert (found.files, found.unproven) == ((), ("/etc/secret", "/opt/bin/kubelet"))


def test_what_the_next_apply_changes_is_ours_as_before(node: Node) -> None:
    """Contract 8.4: a file and a unit that last-applied has are ours whatever the new OSC wanted of them."""
    old = document(files=[file("/etc/a", "1"), file("/etc/gone")], units=[{"name": "u.service", "content": "1"}])
    node.applied(old)
    node.begun(document(files=[file("/etc/a", "2")], units=[{"name": "u.service", "content": "2"}]), old=old)
    node.write("/etc/a", "1")
    node.write("/etc/systemd/system/u.service", "1")
    found = node.remains()
    assert (found.files, found.unproven) == (("/etc/a", "/etc/gone"), ())
    assert UnitRemains("u.service", True, ()) in found.units


@pytest.mark.parametrize("broken", ["pending", "last-applied"])
def test_with_a_damaged_state_file_what_was_asked_for_last_is_compared(node: Node, broken: str) -> None:
    """Contract 6.4 d, 8.4: then only what is exactly as asked is ours."""
    osc = document(
        files=[file("/etc/same"), file("/etc/other")],
        units=[{"name": "u.service", "content": "x", "dropIns": [{"name": "a.conf", "content": "a"}]}],
        registries=["ghcr.io"],
    )
    node.desire(osc)
    damaged = node.paths.pending_changes if broken == "pending" else node.paths.last_applied
    node.write(str(damaged.relative_to(node.root)), '{"files": ')
    node.write("/etc/same", "ours")
    node.write("/etc/other", "another's")
    node.write("/etc/systemd/system/u.service", "x")
    found = node.remains()
    assert (found.files, found.unproven, found.registries) == (("/etc/same",), ("/etc/other",), ("ghcr.io",))
    assert found.units == (UnitRemains("u.service", True, ()), OWN)


def test_with_nothing_readable_it_is_not_guessed(node: Node) -> None:
    """Contract 8.4: a damaged last-applied and nothing else is an error that says what to do."""
    node.write(str(node.paths.last_applied.relative_to(node.root)), "{")
    with pytest.raises(NothingKnown, match="move it away"):
        node.remains()


def test_names_that_lead_elsewhere_are_not_followed(node: Node) -> None:
    """Contract 9 W7: state of another agent was never validated; such names are passed over."""
    osc = document(
        files=[file("/etc/../root/x"), file("relative"), file("/etc/good")],
        units=[
            {"name": "../x.service", "content": "x"},
            {"name": "u.service", "content": "x", "dropIns": [{"name": "..", "content": ""}]},
        ],
        registries=["..", "docker.io"],
    )
    node.write(str(node.paths.last_applied.relative_to(node.root)), dump_state(osc).decode())
    found = node.remains()
    assert (found.files, found.registries) == (("/etc/good",), ("docker.io",))
    assert found.units == (UnitRemains("u.service", True, ()), OWN)
