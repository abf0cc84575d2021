"""`plan`: what it says is what the real OSC controller then does, and making it changes nothing."""

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agents.core.errors import RetriableError
from agents.inspection.document import to_json
from agents.inspection.output import Style
from nodeagent.controllers.operatingsystemconfig.reporter import ApplyFailed
from nodeagent.inspection import plan_text
from nodeagent.inspection.plan import Disruption, Item, Plan
from nodeagent.inspection.planning import NothingDesired
from osc.errors import InvalidOSC
from tests.support.looked_at import AGENT_UNIT, LookedAt
from tests.support.osc_agent import SLEEP, containerd, from_image, from_secret, inline
from tests.unit.nodeagent.inspection.test_commands import printed

Document = dict[str, Any]
TIMER = "[Timer]\nOnBootSec=1d\n[Install]\nWantedBy=timers.target\n"
POD = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}})


def osc(**spec: Any) -> Document:
    """Return an OSC."""
    return {"apiVersion": "extensions.gardener.cloud/v1alpha1", "kind": "OperatingSystemConfig", "spec": spec}


def unit(name: str, **fields: Any) -> Document:
    """Return a unit that sleeps."""
    return {"name": name, "content": SLEEP, "enable": True, **fields}


BASE = osc(
    files=[inline("/etc/a", "one\n", 0o644), inline("/etc/s", "secret-one", 0o600), inline("/etc/gone", "g", 0o644)],
    units=[unit("a.service", filePaths=["/etc/a"]), unit("b.service"), unit("gone.service")],
)


def changed(**spec: Any) -> Document:
    """Return the base with other parts of its spec."""
    return osc(**{**BASE["spec"], **spec})


def text(found: Plan) -> str:
    """Return the text for people."""
    return "\n".join(plan_text.lines(found, Style()))


def items(found: Plan) -> dict[str, Item]:
    """Return the items by their names."""
    return {item.name: item for item in found.items}


def save(node: LookedAt, document: Mapping[str, Any], name: str = "new.json") -> Path:
    """Write an OSC outside of the machine's tree."""
    path = node.root.parent / f"{node.root.name}-{name}"
    path.write_text(json.dumps(document))
    return path


async def apply(node: LookedAt, document: Document) -> None:
    """Let an OSC be applied."""
    node.publish_bytes(json.dumps(document).encode())
    await node.reconcile()


def files_of(node: LookedAt) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of the machine's managed files."""
    return {
        f"/{path.relative_to(node.root)}": (path.stat().st_mode & 0o777, path.read_bytes())
        for folder in ("etc", "opt")
        for path in (node.root / folder).rglob("*")
        if path.is_file() and not path.is_symlink()
    }


CHANGES: dict[str, Document] = {
    "nothing": BASE,
    "a file and its unit": changed(
        files=[inline("/etc/a", "two\n", 0o644), inline("/etc/s", "secret-one", 0o600), inline("/etc/gone", "g", 0o644)]
    ),
    "a mode": changed(files=[inline("/etc/a", "one\n", 0o600), *BASE["spec"]["files"][1:]]),
    "all leaves": osc(),
    "a new unit with a drop-in": changed(
        units=[*BASE["spec"]["units"], unit("c.service", dropIns=[{"name": "10.conf", "content": "[Unit]\n"}])]
    ),
    "another unit file": changed(units=[unit("a.service", content=f"# new\n{SLEEP}"), *BASE["spec"]["units"][1:]]),
    "a unit is stopped": changed(units=[unit("a.service", command="stop", enable=False), *BASE["spec"]["units"][1:]]),
    "a drop-in of a unit of others": changed(
        units=[*BASE["spec"]["units"], {"name": AGENT_UNIT, "dropIns": [{"name": "x.conf", "content": "[Unit]\n"}]}]
    ),
}


@pytest.mark.parametrize("case", CHANGES)
async def test_what_is_planned_is_what_is_done(node: LookedAt, case: str) -> None:
    """Contract 6.2, 6.3: files that are created, changed and removed, and units that get a job, are those of the plan."""
    async with node.connected():
        await apply(node, BASE)
        path, jobs, before = save(node, CHANGES[case]), len(node.host.jobs), files_of(node)
        found = await node.plan(path)
        assert files_of(node) == before
        assert len(node.host.jobs) == jobs
        await apply(node, CHANGES[case])
        after = files_of(node)
    differing = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert {item.name for item in found.items if item.kind in ("file", "unitFile", "dropIn")} == differing
    for item in found.items:
        if item.after is not None:
            mode, content = after[item.name]
            assert (item.after.size, item.after.mode) == (len(content), f"{mode:04o}")
            assert hashlib.sha256(content).hexdigest().startswith(item.after.sha256)
    done = {(name, kind) for kind, name in node.host.jobs[jobs:]}
    planned = {(command.unit, command.command) for command in found.commands}
    assert planned - {(AGENT_UNIT, "restart")} == done
    assert ((AGENT_UNIT, "restart") in planned) == (node.restart_reason() is not None)


@pytest.mark.parametrize("case", [*CHANGES, "damaged", "containerd"])
async def test_a_plan_changes_nothing(node: LookedAt, case: str) -> None:
    """Modes, inodes, times of change and content of everything on the machine are the same afterwards; no method of systemd that changes was called."""
    async with node.connected():
        await apply(node, BASE)
        if case == "damaged":
            node.paths.last_applied.write_bytes(b"{")
        wanted = changed(criConfig=containerd()) if case == "containerd" else CHANGES.get(case, BASE)
        path = save(node, wanted)
        before, calls = node.tree(), len(node.host.received)
        await node.plan(path)
        await node.plan()
        assert node.tree() == before
        assert set(node.host.received[calls:]) <= {"Hello", "AddMatch", "Subscribe", "GetUnitFileState"}


async def test_units_are_named_with_the_reason(node: LookedAt) -> None:
    """Each command says why: file, unit file, drop-in, new or gone."""
    new = changed(
        files=[inline("/etc/a", "two\n", 0o644), *BASE["spec"]["files"][1:]],
        units=[
            unit("a.service", filePaths=["/etc/a"]),
            unit("b.service", content=f"# x\n{SLEEP}", dropIns=[{"name": "1.conf", "content": "[Unit]\n"}]),
            unit("c.timer", content=TIMER),
        ],
    )
    async with node.connected():
        await apply(node, BASE)
        found = await node.plan(save(node, new))
    assert {(one.unit, one.command): one.reasons for one in found.commands} == {
        ("a.service", "restart"): ("file /etc/a changes",),
        ("b.service", "restart"): ("its unit file changes", "drop-in 1.conf is new"),
        ("c.timer", "restart"): ("new in the OperatingSystemConfig",),
        ("gone.service", "stop"): ("leaves the OperatingSystemConfig",),
    }
    assert "  restart a.service (service restart): file /etc/a changes" in text(found)


async def test_only_what_everybody_may_read_is_shown(node: LookedAt) -> None:
    """A secret cannot be told from another file: content of what is not readable for others, before or after, is never shown."""
    files = [
        inline("/etc/shown", "shown-before\n", 0o644),
        inline("/etc/private", "hidden-before\n", 0o600),
        inline("/etc/opens", "hidden-opens\n", 0o600),
        inline("/etc/closes", "hidden-closes\n", 0o644),
        inline("/etc/folder/closed", "hidden-folder\n", 0o644),
        inline("/etc/folder/leaves", "hidden-leaves\n", 0o644),
        inline("/etc/leaves", "shown-leaves\n", 0o644),
        inline("/etc/leaves-private", "hidden-leaves\n", 0o600),
    ]
    after = [
        inline("/etc/shown", "shown-after\n", 0o644),
        inline("/etc/private", "hidden-after\n", 0o600),
        inline("/etc/opens", "hidden-opened\n", 0o644),
        inline("/etc/closes", "hidden-closed\n", 0o600),
        inline("/etc/folder/closed", "hidden-in-folder\n", 0o644),
        inline("/etc/new", "shown-new\n", 0o644),
        inline("/etc/new-private", "hidden-new\n", 0o640),
    ]
    units = [unit("a.service", content=f"# hidden-unit\n{SLEEP}")]
    async with node.connected():
        await apply(node, osc(files=files))
        (node.root / "etc/folder").chmod(0o700)
        found = await node.plan(save(node, osc(files=after, units=units)))
    everything = text(found) + to_json(found)
    assert "hidden" not in everything
    shown = {item.name for item in found.items if item.diff is not None}
    assert shown == {"/etc/shown", "/etc/new", "/etc/leaves"}
    assert items(found)["/etc/shown"].diff == (
        "--- /etc/shown\n+++ /etc/shown\n@@ -1 +1 @@\n-shown-before\n+shown-after\n"
    )
    assert items(found)["/etc/new"].diff == "--- /dev/null\n+++ /etc/new\n@@ -0,0 +1 @@\n+shown-new\n"
    private = items(found)["/etc/private"]
    assert private.before is not None
    assert private.before.sha256 == hashlib.sha256(b"hidden-before\n").hexdigest()[:12]
    line = f"    14 bytes, sha256 {private.before.sha256}, mode 0600 -> 13 bytes, sha256 "
    assert line in text(found)


@pytest.mark.parametrize("data", [b"\0binary", b"\xff\xfe", b"x" * 300_000])
async def test_what_is_no_short_text_has_no_diff(node: LookedAt, data: bytes) -> None:
    """Size and digest are enough for programs."""
    file = {
        "path": "/opt/x",
        "permissions": 0o755,
        "content": {"inline": {"encoding": "b64", "data": base64.b64encode(data).decode()}},
    }
    async with node.connected():
        await apply(node, BASE)
        found = await node.plan(save(node, changed(files=[*BASE["spec"]["files"], file])))
    (item,) = found.items[:1]
    assert (item.name, item.diff) == ("/opt/x", None)
    assert item.after is not None
    assert item.after.size == len(data)


def in_place(version: str, kubelet: str = "1.33.1") -> Document:
    """Return an OSC for updates in place."""
    files = [inline("/var/lib/kubelet/config/kubelet", "kind: KubeletConfiguration")]
    return osc(files=files, inPlaceUpdates={"operatingSystemVersion": version, "kubelet": kubelet})


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (BASE, BASE, Disruption.NONE),
        (BASE, changed(files=[*BASE["spec"]["files"], inline("/etc/n", "x")]), Disruption.RELOAD),
        (BASE, changed(units=[*BASE["spec"]["units"], unit("n.service")]), Disruption.SERVICE_RESTART),
        (BASE, changed(units=[*BASE["spec"]["units"], unit("kubelet.service")]), Disruption.KUBELET_RESTART),
        (
            BASE,
            changed(files=[*BASE["spec"]["files"], inline("/etc/kubernetes/manifests/p.yaml", POD)]),
            Disruption.PODS_DELETED,
        ),
        (in_place("12.1"), in_place("12.1", "1.34.1"), Disruption.PODS_DELETED),
        (in_place("12.1"), in_place("12.2"), Disruption.REBOOT),
    ],
)
async def test_the_worst_disruption_is_named(
    node: LookedAt, before: Document, after: Document, expected: Disruption
) -> None:
    """Contract 6.12, 6.13: none, reload, service restart, kubelet restart, pods deleted, reboot."""
    node.place("etc/os-release", 'PRETTY_NAME="Debian 12.1"\n', 0o644)
    async with node.connected():
        await apply(node, before)
        found = await node.plan(save(node, after))
    assert found.disruption == expected
    assert expected == Disruption.NONE or any(
        expected in (item.disruption, *(one.disruption for one in found.commands)) for item in found.items
    )


async def test_while_an_update_waits_for_its_drain(node: LookedAt) -> None:
    """Contract 6.13: what is desired on the disk is the OSC before; so it says, and where the other one is named it says what that brings."""
    node.place("etc/os-release", 'PRETTY_NAME="Debian 12.1"\n', 0o644)
    async with node.connected():
        await apply(node, in_place("12.1"))
        await apply(node, in_place("12.2"))
        assert node.status_document()["phase"] == "waitingForDrain"
        kept, waiting = await node.plan(), await node.plan(save(node, in_place("12.2")))
    assert (kept.items, kept.disruption) == ((), Disruption.NONE)
    assert [note for note in kept.notes if "--osc" in note]
    assert waiting.disruption == Disruption.REBOOT
    assert not [note for note in waiting.notes if "--osc" in note]


@pytest.mark.parametrize("lost", [False, True])
async def test_an_update_is_known_where_last_applied_is_damaged(node: LookedAt, lost: bool) -> None:
    """Contract 6.13: from the generation before, as the agent does."""
    node.place("etc/os-release", 'PRETTY_NAME="Debian 12.1"\n', 0o644)
    async with node.connected():
        await apply(node, in_place("12.1"))
        node.paths.last_applied.write_bytes(b"{")
        if lost:
            node.paths.last_applied.unlink()
        found = await node.plan(save(node, in_place("12.2")))
    assert found.disruption == Disruption.REBOOT


@pytest.mark.parametrize("lost", [False, True])
async def test_what_is_applied_is_no_update_where_last_applied_is_damaged(node: LookedAt, lost: bool) -> None:
    """Contract 6.13: as the agent: another version of the operating system is drift then."""
    node.place("etc/os-release", 'PRETTY_NAME="Debian 12.1"\n', 0o644)
    async with node.connected():
        await apply(node, in_place("12.1"))
        node.place("etc/os-release", 'PRETTY_NAME="Debian 12.2"\n', 0o644)
        node.paths.last_applied.write_bytes(b"{")
        if lost:
            node.paths.last_applied.unlink()
        found = await node.plan()
        node.start_process()
        node.identity.start()
        await node.reconcile()
        assert node.status_document()["phase"] == "applied"
    assert found.disruption != Disruption.REBOOT


async def test_a_file_of_a_unit_has_the_disruption_of_its_restart(node: LookedAt) -> None:
    """A file by itself disrupts nothing; the units that use it do."""
    files = [inline("/etc/k", "x", 0o644), inline("/etc/none", "x", 0o644)]
    units = [unit("kubelet.service", filePaths=["/etc/k"]), unit("a.service", filePaths=["/etc/k"])]
    async with node.connected():
        found = await node.plan(save(node, osc(files=files, units=units)))
    assert items(found)["/etc/k"].disruption == Disruption.KUBELET_RESTART
    assert items(found)["/etc/none"].disruption == Disruption.NONE
    assert items(found)["/etc/systemd/system/a.service"].disruption == Disruption.SERVICE_RESTART


async def test_content_from_elsewhere_is_said_to_be_unknown(node: LookedAt) -> None:
    """Contract 6.16, 6.5: neither an image nor a Secret is read."""
    files = [from_image("/opt/bin/kubelet", "registry/hyperkube:v1", "/kubelet"), from_secret("/etc/t", "token")]
    async with node.connected():
        found = await node.plan(save(node, osc(files=files)))
        assert node.images.pulls == []
    assert {(item.name, item.action, item.after) for item in found.items if item.kind == "file"} == {
        ("/opt/bin/kubelet", "fetch", None),
        ("/etc/t", "fetch", None),
    }
    assert "image registry/hyperkube:v1" in items(found)["/opt/bin/kubelet"].note
    assert "Secret kube-system/token" in items(found)["/etc/t"].note


async def test_what_was_there_before_us_comes_back(node: LookedAt) -> None:
    """A file that an OSC replaced is restored, one that it brought is removed."""
    node.place("etc/motd", "of the distribution\n", 0o644)
    async with node.connected():
        await apply(node, osc(files=[inline("/etc/motd", "ours\n", 0o644), inline("/etc/x", "x", 0o644)]))
        found = await node.plan(save(node, osc()))
    assert {item.name: item.action for item in found.items if item.kind == "file"} == {
        "/etc/motd": "restore",
        "/etc/x": "remove",
    }


async def test_containerds_configuration_is_compared_by_what_it_says(node: LookedAt) -> None:
    """Contract 6.14, W16: a real difference is a diff and a restart; none is nothing, however the file is written."""
    wanted = changed(criConfig=containerd(registries=[{"upstream": "docker.io", "server": "https://docker.io"}]))
    node.host.write_unit("containerd.service", SLEEP)
    node.place("etc/containerd/config.toml", "version = 2\n# a comment\n", 0o644)
    async with node.connected():
        await apply(node, BASE)
        found = await node.plan(save(node, wanted))
        item = items(found)["/etc/containerd/config.toml"]
        assert (item.kind, item.action, item.disruption) == ("containerdConfig", "update", Disruption.SERVICE_RESTART)
        assert item.diff is not None
        assert '+sandbox_image = "pause"' in item.diff
        assert items(found)["docker.io"].action == "create"
        (restart,) = (one for one in found.commands if one.unit == "containerd.service")
        assert restart.reasons == ("new in the OperatingSystemConfig", "containerd's configuration changes")
        await apply(node, wanted)
        place = node.root / "etc/containerd/config.toml"
        place.write_text(f"# again\n{place.read_text()}")
        again = await node.plan(save(node, wanted))
    assert (again.items, again.commands) == ((), ())


async def test_a_containerd_that_does_not_answer_is_said(node: LookedAt) -> None:
    """The agent would then write and restart, as far as anybody can tell."""
    node.containerd.error = RetriableError("containerd does not answer")
    async with node.connected():
        found = await node.plan(save(node, osc(criConfig=containerd())))
    assert found.notes[0] == "containerd's configuration was not looked at: containerd does not answer"
    assert "/etc/containerd/config.toml" in items(found)


async def test_without_a_file_it_is_what_is_left(node: LookedAt) -> None:
    """An apply that did not end is gone on with: the journal's items, nothing else."""
    async with node.connected():
        await apply(node, BASE)
        node.publish_bytes(
            json.dumps(changed(files=[inline("/etc/n", "x", 0o644), from_image("/opt/x", "none", "/x")])).encode()
        )
        with pytest.raises(ApplyFailed):
            await node.reconcile()
        found = await node.plan()
    assert found.resumed
    assert [item.name for item in found.items if item.kind == "file"] == ["/opt/x"]
    assert found.source == str(node.paths.desired)


@pytest.mark.parametrize("desired_too", [False, True])
async def test_damaged_state_is_compared_with_the_machine(node: LookedAt, *, desired_too: bool) -> None:
    """Contract 6.4 d: what differs on the disk counts where the state files do not tell, and it is said."""
    async with node.connected():
        await apply(node, BASE)
        node.place("etc/a", "other", 0o644)
        node.paths.pending_changes.write_bytes(b"torn")
        if desired_too:
            node.paths.desired.unlink()
        found = await node.plan(save(node, BASE))
    assert items(found)["/etc/a"].action == "update"
    assert "state files do not tell what is on the machine, so everything was compared with it" in found.notes


async def test_what_a_superseded_apply_left_is_known(node: LookedAt) -> None:
    """Contract 6.4 b, W10: back to what was applied last removes what an unfinished apply in between has brought."""
    between = changed(files=[inline("/etc/between", "x", 0o644), from_image("/opt/x", "none", "/x")])
    async with node.connected():
        await apply(node, BASE)
        node.publish_bytes(json.dumps(between).encode())
        with pytest.raises(ApplyFailed):
            await node.reconcile()
        found = await node.plan(save(node, BASE))
    assert not found.resumed
    assert items(found)["/etc/between"].action == "remove"


async def test_an_osc_may_come_in_its_secret(node: LookedAt) -> None:
    """Contract 5.1: with the checksum that its annotation announces."""
    data = {"osc.yaml": base64.b64encode(json.dumps(BASE).encode()).decode()}
    metadata = {"name": "x", "annotations": {"checksum/data-script": "announced"}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
    async with node.connected():
        found = await node.plan(save(node, secret))
    assert found.checksum == "announced"
    assert "/etc/a" in items(found)


async def test_a_bad_osc_has_no_plan(node: LookedAt) -> None:
    """Contract 5.4: as the agent would refuse it."""
    async with node.connected():
        with pytest.raises(InvalidOSC, match=r"spec.files\[0\].path"):
            await node.plan(save(node, osc(files=[inline("relative", "x")])))


async def test_without_anything_desired_there_is_no_plan(node: LookedAt) -> None:
    """A machine that never saw an OSC needs one to be named."""
    async with node.connected():
        with pytest.raises(NothingDesired):
            await node.plan()


def test_problems_are_lines_with_exit_code_1(tmp_path: Path) -> None:
    """As for the agent's configuration: one line each, no traceback."""
    path = tmp_path / "osc.json"
    path.write_text(json.dumps(osc(files=[inline("relative", "x"), inline("/a/../b", "x")])))
    code, out, errors = printed("plan", "--osc", str(path), root=tmp_path)
    assert (code, out) == (1, "")
    assert [line.split(": ")[1] for line in errors.splitlines()] == ["spec.files[0].path", "spec.files[1].path"]
    assert printed("plan", "--osc", str(tmp_path / "none"), root=tmp_path)[0] == 1
    assert "error: no OperatingSystemConfig is desired here yet" in printed("plan", root=tmp_path)[2]


def test_a_plan_needs_neither_agent_nor_bus(tmp_path: Path) -> None:
    """On an empty machine without systemd the plan is made, and what could not be asked is said."""
    path = tmp_path / "osc.json"
    path.write_text(json.dumps(BASE))
    code, out, _ = printed("plan", "--osc", str(path), "-o", "json", root=tmp_path)
    assert code == 0
    found = json.loads(out)
    assert [item["name"] for item in found["items"][:3]] == ["/etc/a", "/etc/s", "/etc/gone"]
