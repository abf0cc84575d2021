"""Everything that an apply asks of systemd, and the modes that it leaves: no call more, no call fewer."""

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeagent.controllers.operatingsystemconfig.reporter import ApplyFailed
from tests.support.osc_agent import SLEEP, OscAgent, inline

UNITS = Path("etc/systemd/system")
Call = tuple[str, tuple[object, ...]]


@contextmanager
def calls(node: OscAgent) -> Iterator[list[Call]]:
    """Collect all calls of a block, sorted, but for those that only read or open the connection."""
    begin = len(node.host.received)
    found: list[Call] = []
    yield found
    members, bodies = node.host.received[begin:], node.host.bodies[begin:]
    found += sorted(
        (member, tuple(tuple(sorted(item)) if isinstance(item, list) else item for item in body))
        for member, body in zip(members, bodies, strict=True)
        if member not in ("Get", "GetAll", "GetUnitFileState", "ListUnits", "Hello", "AddMatch", "Subscribe")
    )


def modes(node: OscAgent, folder: Path) -> dict[str, int]:
    """Return the modes of all that is below a folder but links."""
    paths = (path for path in (node.root / folder).rglob("*") if not path.is_symlink())
    return {str(path.relative_to(node.root / folder)): stat.S_IMODE(path.stat().st_mode) for path in paths}


def unit(name: str, text: str = "", **fields: Any) -> dict[str, Any]:
    """Return a unit with a definition of its own."""
    return {"name": f"{name}.service", "content": f"# {text}\n{SLEEP}", **fields}


def drop_ins(*names: str, text: str = "") -> list[dict[str, str]]:
    """Return drop-ins."""
    return [{"name": f"{name}.conf", "content": f"# {text}\n"} for name in names]


BEFORE: dict[str, list[dict[str, Any]]] = {
    "files": [
        inline("/etc/same", "1"),
        inline("/etc/changed", "1"),
        inline("/etc/removed", "1"),
        inline("/etc/used", "1"),
    ],
    "units": [
        unit("same"),
        unit("changed"),
        unit("user", filePaths=["/etc/used"]),
        unit("dropins", dropIns=drop_ins("same", "changed", "removed")),
        unit("removed", dropIns=drop_ins("a")),
        unit("disabled"),
        {"name": "vendor.service", "dropIns": drop_ins("a")},
    ],
}
AFTER: dict[str, list[dict[str, Any]]] = {
    "files": [
        inline("/etc/same", "1"),
        inline("/etc/changed", "2"),
        inline("/etc/used", "2"),
        inline("/etc/added", "2", 0o755),
    ],
    "units": [
        unit("same"),
        unit("changed", "2"),
        unit("user", filePaths=["/etc/used"]),
        unit("dropins", dropIns=[*drop_ins("same"), *drop_ins("changed", "added", text="2")]),
        unit("disabled", enable=False),
        unit("added", dropIns=drop_ins("a")),
    ],
}
CALLS = [
    ("DisableUnitFiles", (("disabled.service",), False)),
    ("DisableUnitFiles", (("removed.service",), False)),
    (
        "EnableUnitFiles",
        (("added.service", "changed.service", "dropins.service", "user.service"), False, True),
    ),
    ("Reload", ()),
    ("RestartUnit", ("added.service", "replace")),
    ("RestartUnit", ("changed.service", "replace")),
    ("RestartUnit", ("dropins.service", "replace")),
    ("RestartUnit", ("user.service", "replace")),
    ("RestartUnit", ("vendor.service", "replace")),
    ("StopUnit", ("disabled.service", "replace")),
    ("StopUnit", ("removed.service", "replace")),
]
MODES = {
    "added": 0o755,
    "changed": 0o600,
    "same": 0o600,
    "used": 0o600,
    "systemd": 0o755,
    "systemd/system": 0o755,
    "systemd/system/added.service": 0o600,
    "systemd/system/added.service.d": 0o755,
    "systemd/system/added.service.d/a.conf": 0o600,
    "systemd/system/changed.service": 0o600,
    "systemd/system/disabled.service": 0o600,
    "systemd/system/dropins.service": 0o600,
    "systemd/system/dropins.service.d": 0o755,
    "systemd/system/dropins.service.d/added.conf": 0o600,
    "systemd/system/dropins.service.d/changed.conf": 0o600,
    "systemd/system/dropins.service.d/same.conf": 0o600,
    "systemd/system/multi-user.target.wants": 0o755,
    "systemd/system/same.service": 0o600,
    "systemd/system/user.service": 0o600,
    "systemd/system/vendor.service": 0o644,
}


async def test_actions_of_an_update(node: OscAgent) -> None:
    """Contract 6.6, Appendix C (apply): added, removed, changed and equal files, units and drop-ins: the complete list of calls, and all modes."""
    node.host.write_unit("vendor.service", SLEEP)
    node.publish(files=BEFORE["files"], units=BEFORE["units"])
    async with node.connected():
        await node.reconcile()
        checksum = node.publish(files=AFTER["files"], units=AFTER["units"])
        with calls(node) as made:
            await node.reconcile()
        order = [member for member in node.host.received if member in ("Reload", "RestartUnit")]
    assert node.applied() == checksum
    assert made == CALLS
    assert order[-6:] == ["Reload", *["RestartUnit"] * 5]
    assert modes(node, Path("etc")) == MODES


async def test_actions_of_a_first_apply_and_of_the_retry_after_a_failed_restart(node: OscAgent) -> None:
    """Contract 6.4, 6.6, Appendix C (apply): all units once; then the failed one alone, with nothing that was done already."""
    broken = {"name": "broken.service", "content": f"[Unit]\nAssertPathExists={node.root}/present\n{SLEEP}"}
    checksum = node.publish(files=[inline("/etc/a", "1")], units=[unit("good", dropIns=drop_ins("a")), broken])
    async with node.connected():
        with calls(node) as made, pytest.raises(ApplyFailed):
            await node.reconcile()
        assert made == [
            ("EnableUnitFiles", (("broken.service", "good.service"), False, True)),
            ("Reload", ()),
            ("RestartUnit", ("broken.service", "replace")),
            ("RestartUnit", ("good.service", "replace")),
        ]
        (node.root / "present").touch()
        with calls(node) as made:
            await node.reconcile()
        assert made == [("RestartUnit", ("broken.service", "replace"))]
        with calls(node) as made:
            await node.reconcile()
        assert made == []
    assert node.applied() == checksum
