"""What user data's init script leaves mounted, with a real containerd."""

import io
import tarfile

import pytest

from tests.lab.agent import AgentSource
from tests.lab.cluster import Lab
from tests.lab.machine import Machine
from tests.lab.oci import LAYOUT_MARK, Entry, Image
from tests.lab.userdata import hand_user_data, run_bootstrap
from tests.lab.worker_osc import AGENT_UNIT

pytestmark = pytest.mark.machine

IMAGE = "lab.internal/node-agent:1"


@pytest.fixture
def prepared(machine: Machine, lab: Lab, agent: AgentSource) -> Machine:
    """A machine with user data and the agent's image; the agent itself does not join."""
    hand_user_data(machine, lab, agent=agent)
    idle = b"[Service]\nExecStart=\nExecStart=/usr/bin/sleep infinity\n"
    machine.write(f"/run/systemd/system/{AGENT_UNIT}.d/idle.conf", idle)
    one = Image.build([Entry("gardener-node-agent", b"agent")])
    two = Image.build(
        [Entry("base", b"base")], [Entry("ko-app", kind="directory"), Entry("ko-app/gardener-node-agent", b"agent")]
    )
    for number, image in enumerate((one, two)):
        machine.write("/tmp/image.tar", _archive(image, f"{IMAGE}-{number}"))
        machine.run(["ctr", "images", "import", "--snapshotter=overlayfs", "/tmp/image.tar"])
    return machine


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


def left(machine: Machine) -> list[str]:
    """Return mounts, snapshots of views and leases that are named after temporary folders, and the folders."""
    script = "cut -d' ' -f5 /proc/self/mountinfo; ctr snapshots list | cut -d' ' -f1; ctr leases list -q; ls -d /tmp/tmp.* 2>/dev/null"
    return [line for line in machine.run(["sh", "-c", script], check=False).stdout.split() if "/tmp/tmp." in line]


def test_w21_bootstrap_unmounts_what_the_init_script_left(prepared: Machine) -> None:
    """Contract 8.1, 9 W21: images of one layer and of several, of this run and earlier ones: unmounted, snapshot, lease and folder gone."""
    folders = [mount_as_init_script(prepared, number) for number in (0, 1, 0)]
    other = prepared.run(["mktemp", "-d", "/tmp/other-XXXX"]).stdout.strip()
    prepared.run(["ctr", "images", "mount", f"{IMAGE}-0", other])
    assert set(left(prepared)) >= set(folders)
    run_bootstrap(prepared)
    assert left(prepared) == []
    assert other in prepared.run(["cut", "-d", " ", "-f5", "/proc/self/mountinfo"]).stdout.split()


def test_w21_without_containerd_the_images_are_unmounted_all_the_same(prepared: Machine) -> None:
    """Contract 9 W21, W25: a containerd that does not run holds nothing up; what it keeps expires after a day."""
    folder = mount_as_init_script(prepared, 1)
    prepared.systemctl("stop", "containerd.service")
    run_bootstrap(prepared)
    assert folder not in prepared.run(["cat", "/proc/self/mountinfo"]).stdout
    assert not prepared.exists(folder)
    assert prepared.unit(AGENT_UNIT)["ActiveState"] == "active"
