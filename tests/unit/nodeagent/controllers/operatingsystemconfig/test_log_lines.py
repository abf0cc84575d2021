"""What an apply says: one line for each change on the machine, and none for what was as it should be."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from structlog.testing import capture_logs

from tests.support.osc_agent import HOSTNAME, SLEEP, OscAgent, containerd, inline

UNITS = "etc/systemd/system"
OTHER = SLEEP.replace("infinity", "1d")
Line = tuple[str, str]


@contextmanager
def said(node: OscAgent) -> Iterator[list[Line]]:
    """Collect the lines of level info that are said in a block, sorted: the message, and what of the machine it is about."""
    found: list[Line] = []
    with capture_logs() as lines:
        yield found
    for line in lines:
        if line["log_level"] == "info":
            about = next((str(line[key]) for key in ("path", "unit", "upstream", "node") if key in line), "")
            command = f" {line['command']}" if "command" in line else ""
            found.append((line["event"] + command, about.removeprefix(f"{node.root}/").removeprefix("/")))
    found.sort()


async def test_an_apply_says_each_change_once(node: OscAgent) -> None:
    """Ours (docs/logging.md): files, modes, drop-ins, links, jobs, containerd: a line each; a pass that changes nothing says nothing."""
    node.host.write_unit("containerd.service", SLEEP)
    for name, mode in (("as-it-should-be", 0o600), ("open", 0o666)):
        place = node.root / "etc" / name
        place.write_text("same")
        place.chmod(mode)
    files = [inline(f"/etc/{name}", "same", 0o600) for name in ("as-it-should-be", "open", "f1", "f2", "f3")]
    drop_ins = [{"name": name, "content": f"# {name}"} for name in ("1.conf", "2.conf")]
    units: list[dict[str, Any]] = [
        {"name": "a.service", "content": SLEEP, "dropIns": drop_ins},
        {"name": "b.service", "content": SLEEP, "enable": False},
    ]
    node.publish(files=files, units=units, criConfig=containerd())
    async with node.connected():
        with said(node) as first:
            await node.reconcile()
        with said(node) as second:
            await node.reconcile()
    assert first == [
        ("Configuration of containerd written", "etc/containerd/config.toml"),
        ("File mode set", "etc/open"),
        ("File written", "etc/f1"),
        ("File written", "etc/f2"),
        ("File written", "etc/f3"),
        ("File written", f"{UNITS}/a.service"),
        ("File written", f"{UNITS}/a.service.d/1.conf"),
        ("File written", f"{UNITS}/a.service.d/2.conf"),
        ("File written", f"{UNITS}/b.service"),
        ("File written", f"{UNITS}/containerd.service.d/30-env_config.conf"),
        ("Node labelled", HOSTNAME),
        ("Operating system config applied", HOSTNAME),
        ("Operating system config read", ""),
        ("Original kept", "etc/as-it-should-be"),
        ("Original kept", "etc/containerd/config.toml"),
        ("Original kept", "etc/open"),
        ("Unit command done restart", "a.service"),
        ("Unit command done restart", "containerd.service"),
        ("Unit command done stop", "b.service"),
        ("Unit enabled", "a.service"),
        ("Unit enabled", "containerd.service"),
    ]
    assert second == []


async def test_what_leaves_is_said_once_each(node: OscAgent) -> None:
    """Ours (docs/logging.md): files, drop-ins, units that left the OSC, a unit that is disabled: a line each, and no line for what stays."""
    drop_in = {"name": "1.conf", "content": "#"}
    units: list[dict[str, Any]] = [
        {"name": "a.service", "content": SLEEP, "dropIns": [drop_in]},
        {"name": "b.service", "content": SLEEP},
        {"name": "c.service", "content": SLEEP},
        {"name": "stays.service", "content": SLEEP},
    ]
    files = [inline(f"/etc/{name}", "x") for name in ("f1", "f2", "stays")]
    node.publish(files=files, units=units)
    async with node.connected():
        await node.reconcile()
        left = [{"name": "a.service", "content": OTHER}, {**units[1], "enable": False}, units[3]]
        node.publish(files=files[2:], units=left)
        with said(node) as lines:
            await node.reconcile()
    assert lines == [
        ("Drop-ins or unit file removed", "a.service"),
        ("File removed", "etc/f1"),
        ("File removed", "etc/f2"),
        ("File written", f"{UNITS}/a.service"),
        ("Operating system config applied", HOSTNAME),
        ("Operating system config read", ""),
        ("Unit command done restart", "a.service"),
        ("Unit command done stop", "b.service"),
        ("Unit command done stop", "c.service"),
        ("Unit disabled", "b.service"),
        ("Unit disabled", "c.service"),
        ("Unit removed", "c.service"),
    ]
