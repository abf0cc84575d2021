"""What user data's unit and script do, and what the script leaves mounted, with a real containerd and registry."""

import hashlib
import io
import tarfile

import pytest

from tests.lab.agent import AgentSource
from tests.lab.api import wait_for
from tests.lab.cluster import Lab
from tests.lab.machine import Machine
from tests.lab.oci import LAYOUT_MARK, Entry, Image
from tests.lab.registry import published_digest
from tests.lab.userdata import hand_program, hand_user_data, run_bootstrap, start_init_unit, wait_init_unit
from tests.lab.verify import init_leftovers
from tests.lab.worker_osc import AGENT_BINARY, AGENT_UNIT, INIT_UNIT

pytestmark = pytest.mark.machine

IMAGE = "lab.internal/node-agent:1"


@pytest.fixture
def prepared(machine: Machine, lab: Lab, agent: AgentSource) -> Machine:
    """A machine with user data and the agent's image; the agent itself does not join."""
    hand_program(machine, lab, agent=agent)
    keep_idle(machine)
    one = Image.build([Entry("gardener-node-agent", b"agent")])
    two = Image.build(
        [Entry("base", b"base")], [Entry("ko-app", kind="directory"), Entry("ko-app/gardener-node-agent", b"agent")]
    )
    for number, image in enumerate((one, two)):
        machine.write("/tmp/image.tar", _archive(image, f"{IMAGE}-{number}"))
        machine.run(["ctr", "images", "import", "--snapshotter=overlayfs", "/tmp/image.tar"])
    return machine


def keep_idle(machine: Machine) -> None:
    """Let the agent's unit do nothing: what comes after bootstrap is not looked at."""
    idle = b"[Service]\nExecStart=\nExecStart=/usr/bin/sleep infinity\n"
    machine.write(f"/run/systemd/system/{AGENT_UNIT}.d/idle.conf", idle)


def _archive(image: Image, name: str) -> bytes:
    """Return an image as `ctr images import` reads it."""
    files = {f"blobs/sha256/{blob.digest[7:]}": blob.content for blob in (image.manifest, *image.blobs)}
    files |= {"oci-layout": LAYOUT_MARK, "index.json": image.index({"io.containerd.image.name": name})}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def mount_as_init_script(machine: Machine, number: int) -> str:
    """Mount an image the way the script does; returns the folder."""
    script = f'tmp_dir="$(mktemp -d)"; ctr images mount {IMAGE}-{number} "$tmp_dir" >&2; echo "$tmp_dir"'
    return machine.run(["sh", "-c", script]).stdout.strip()


def test_w21_bootstrap_unmounts_what_the_init_script_left(prepared: Machine) -> None:
    """Contract 8.1, 9 W21: images of one layer and of several, of this run and earlier ones: unmounted, snapshot, lease and folder gone."""
    folders = [mount_as_init_script(prepared, number) for number in (0, 1, 0)]
    other = prepared.run(["mktemp", "-d", "/tmp/other-XXXX"]).stdout.strip()
    prepared.run(["ctr", "images", "mount", f"{IMAGE}-0", other])
    assert set(init_leftovers(prepared)) >= set(folders)
    run_bootstrap(prepared)
    assert init_leftovers(prepared) == []
    assert other in prepared.run(["cut", "-d", " ", "-f5", "/proc/self/mountinfo"]).stdout.split()


def test_w21_without_containerd_the_images_are_unmounted_all_the_same(prepared: Machine) -> None:
    """Contract 9 W21, W25: a containerd that does not run holds nothing up; what it keeps expires after a day."""
    folder = mount_as_init_script(prepared, 1)
    prepared.systemctl("stop", "containerd.service")
    run_bootstrap(prepared)
    assert folder not in prepared.run(["cat", "/proc/self/mountinfo"]).stdout
    assert not prepared.exists(folder)
    assert prepared.unit(AGENT_UNIT)["ActiveState"] == "active"


def failed_again_without_traces(machine: Machine) -> bool:
    """Tell whether the script has failed twice, and nothing of it is there while systemd waits until it starts it again.

    Asked at once: the next try has its folder as soon as the wait is over. What a try left would stay for ever.
    """
    unit = machine.unit(INIT_UNIT)
    return unit["SubState"] == "auto-restart" and int(unit["NRestarts"]) > 0 and not init_leftovers(machine)


def test_the_agent_comes_out_of_its_image_as_soon_as_there_is_a_registry(
    machine: Machine, lab: Lab, agent: AgentSource
) -> None:
    """Contract 8.1, 9 W21: without a registry the script fails and is repeated; then program, bootstrap and unit; nothing stays mounted."""
    pool = hand_user_data(machine, lab, agent=agent)
    assert pool.images is not None
    keep_idle(machine)
    assert not machine.exists(AGENT_BINARY)
    lab.registry().stop()
    try:
        start_init_unit(machine)
        wait_for(lambda: failed_again_without_traces(machine), timeout=60, what="the end of a second try")
        assert not machine.exists(AGENT_BINARY)
    finally:
        lab.registry()
    unit = wait_init_unit(machine)
    assert (unit["Result"], unit["ExecMainStatus"]) == ("success", "0")
    wanted = published_digest(lab.ledger, pool.images.node_agent, "/gardener-node-agent")
    assert hashlib.sha256(machine.read(AGENT_BINARY)).hexdigest() == wanted
    assert machine.mode(AGENT_BINARY) == 0o755
    assert machine.unit(AGENT_UNIT)["ActiveState"] == "active"
    assert init_leftovers(machine) == []
