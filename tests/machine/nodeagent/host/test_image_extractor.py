"""Files out of images: real containerd, a real registry; afterwards as if no image had ever been there."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.lab.api import wait_for
from tests.lab.breaking_relay import breaking
from tests.lab.oci import Entry, Image
from tests.lab.registry import Registry
from tests.lab.verify import image_leftovers
from tests.support.extraction import HOSTS, SCRATCH, ExtractorOnMachine, wanted

BINARY = b"#!/bin/sh\necho agent\n"
LARGE = os.urandom(24 * 1024 * 1024)
"""Does not become smaller when it is compressed."""
TOOL = "/opt/bin/tool"


def push(registry: Registry, name: str, *entries: Entry, tag: str = "v1") -> str:
    """Push an image with these entries; returns its reference with tag and digest."""
    return registry.push(Image.build(entries), f"test/{name}", tag)


def small(registry: Registry, name: str) -> str:
    """Push an image with a small agent."""
    return push(registry, name, Entry("gardener-node-agent", BINARY))


@contextmanager
def pulling(extractor: ExtractorOnMachine, image: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Have an extraction under way whose pull hangs in the middle of a layer."""
    process = extractor.start(image, wanted())
    try:
        active = ["ctr", "content", "active"]
        wait_for(lambda: "layer-" in extractor.machine.run(active).stdout, timeout=20, what="a layer to arrive")
        yield process
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def empty_unpacked(extractor: ExtractorOnMachine, content: bytes) -> None:
    """Empty a file in the layer that it was unpacked to."""
    find = ["find", "/var/lib/containerd", "-path", "*/fs/gardener-node-agent", "-size", f"{len(content)}c"]
    (path,) = extractor.machine.run(find).stdout.split()
    extractor.machine.run(["truncate", "--size=0", path])


def kill_all(extractor: ExtractorOnMachine, process: "subprocess.Popen[bytes]") -> None:
    """End the extractor and its `ctr` as systemd does when the agent was killed: SIGKILL to all of the unit."""
    found = extractor.machine.run(["pgrep", "-f", "extraction-driver|ctr --address"]).stdout.split()
    for pid in found:
        extractor.machine.kill(extractor.machine.host_pid(int(pid)), signal.SIGKILL)
    process.wait(10)


@pytest.mark.parametrize("kind", ["tls", "plain"])
def test_a_file_comes_out_of_an_image_by_digest(
    extractor: ExtractorOnMachine, registry: Registry, plain: Registry, kind: str
) -> None:
    """Contract 6.16, 6.5, Appendix C (files): from the image to another file system: bytes and mode are the image's and the OSC's, from a registry with an own CA and one without TLS."""
    image = small(registry if kind == "tls" else plain, f"digest-{kind}")
    assert extractor.extract(image, wanted(mode=0o750)) == {TOOL: True}
    assert extractor.machine.read(TOOL) == BINARY
    assert extractor.machine.mode(TOOL) == 0o750


def test_an_image_is_pulled_once_for_all_of_its_files(extractor: ExtractorOnMachine, registry: Registry) -> None:
    """Contract 6.16: several files of one image cost one pull, and the one that is not there fails alone, with its name."""
    image = push(registry, "several", Entry("a", b"1"), Entry("bin/b", b"2"))
    answers = extractor.extract(
        image, wanted("/a", "/opt/test/a"), wanted("bin/b", "/opt/test/b"), wanted("/c", "/opt/test/c")
    )
    assert (answers["/opt/test/a"], answers["/opt/test/b"]) == (True, True)
    assert "file not in image" in str(answers["/opt/test/c"])
    assert "/c" in str(answers["/opt/test/c"])
    assert len([blob for blob in registry.served("test/several") if blob.startswith("sha256:")]) == 3
    assert not extractor.machine.exists("/opt/test/c")


def test_an_unchanged_file_is_left_alone(extractor: ExtractorOnMachine, registry: Registry) -> None:
    """Contract 6.5: equal bytes are not written again, and a wrong mode alone is corrected; neither is a change of bytes."""
    image = small(registry, "unchanged")
    assert extractor.extract(image, wanted()) == {TOOL: True}
    inode = extractor.machine.path(TOOL).stat().st_ino
    extractor.machine.path(TOOL).chmod(0o600)
    assert extractor.extract(image, wanted()) == {TOOL: False}
    assert extractor.machine.path(TOOL).stat().st_ino == inode
    assert extractor.machine.mode(TOOL) == 0o755


def test_a_tag_is_resolved_each_time(extractor: ExtractorOnMachine, registry: Registry) -> None:
    """Contract 6.16: without a digest the registry is asked each time, so a tag that has moved brings the new bytes."""
    by_tag = push(registry, "moved", Entry("gardener-node-agent", b"old")).partition("@")[0]
    assert extractor.extract(by_tag, wanted()) == {TOOL: True}
    push(registry, "moved", Entry("gardener-node-agent", b"new"))
    assert extractor.extract(by_tag, wanted()) == {TOOL: True}
    assert extractor.machine.read(TOOL) == b"new"


def test_the_old_place_of_the_agent_is_tried(extractor: ExtractorOnMachine, registry: Registry) -> None:
    """Contract 6.16: /gardener-node-agent is looked for below /ko-app too; no other name is."""
    image = push(registry, "ko", Entry("ko-app/gardener-node-agent", BINARY), Entry("ko-app/kubelet", BINARY))
    answers = extractor.extract(image, wanted(), wanted("/kubelet", "/opt/bin/kubelet"))
    assert answers[TOOL] is True
    assert "file not in image" in str(answers["/opt/bin/kubelet"])


def test_the_kubelets_namespace_is_not_touched(extractor: ExtractorOnMachine, registry: Registry) -> None:
    """Contract 6.16: the namespace is `default`; what the kubelet has in `k8s.io` is the same before and after."""
    before = image_leftovers(extractor.machine, namespace="k8s.io")
    assert extractor.extract(small(registry, "namespace"), wanted()) == {TOOL: True}
    assert image_leftovers(extractor.machine, namespace="k8s.io") == before
    assert before != []


def test_w08_nothing_outside_the_image_is_read(extractor: ExtractorOnMachine, registry: Registry) -> None:
    """Contract 9 W8: links, also absolute ones, stay below the mount; `..`, a pipe and a directory are refused."""
    extractor.machine.write("/opt/test/secret", b"of the host")
    image = push(
        registry,
        "hostile",
        Entry("inside", BINARY),
        Entry("opt/test/other", b"of the image"),
        Entry("absolute", b"/opt/test/secret", kind="link"),
        Entry("upwards", b"../../../../../../opt/test/secret", kind="link"),
        Entry("shadow", b"/etc", kind="link"),
        Entry("legal", b"/opt/test/../../../opt/test/other", kind="link"),
        Entry("loop", b"loop", kind="link"),
        Entry("pipe", kind="pipe"),
        Entry("folder", kind="directory"),
    )
    sources = ["/absolute", "/upwards", "/shadow/passwd", "/../../../opt/test/secret", "/loop", "/pipe", "/folder"]
    answers = extractor.extract(
        image,
        *(wanted(source, f"/opt/bin/{number}") for number, source in enumerate(sources)),
        wanted("/legal", "/opt/bin/legal"),
    )
    assert answers.pop("/opt/bin/legal") is True
    assert extractor.machine.read("/opt/bin/legal") == b"of the image"
    assert not any(extractor.machine.exists(f"/opt/bin/{number}") for number in range(len(sources)))
    problems = [
        "not in image",
        "not in image",
        "not in image",
        "leads out",
        "symbolic",
        "not a regular",
        "not a regular",
    ]
    for answer, problem in zip(answers.values(), problems, strict=True):
        assert problem in str(answer)


def test_w23_directories_are_0755_whatever_the_file_is(extractor: ExtractorOnMachine, registry: Registry) -> None:
    """Contract 9 W23: new directories above the target are 0755, and the file has its mode despite the umask."""
    assert extractor.extract(small(registry, "modes"), wanted(target="/opt/test/a/b", mode=0o666)) == {
        "/opt/test/a/b": True
    }
    assert extractor.machine.mode("/opt/test/a") == 0o755
    assert extractor.machine.mode("/opt/test/a/b") == 0o666


def test_w33_an_image_that_was_there_stays(extractor: ExtractorOnMachine, registry: Registry) -> None:
    """Contract 9 W33: the record of an image that somebody else pulled is the same afterwards, and needs no registry."""
    image = small(registry, "stays")
    extractor.machine.run(["ctr", "images", "pull", "--hosts-dir", HOSTS, "--label", "whose=others", image])
    listed = extractor.machine.run(["ctr", "images", "list"]).stdout
    served = registry.served("test/stays")
    assert extractor.extract(image, wanted()) == {TOOL: True}
    assert extractor.machine.run(["ctr", "images", "list"]).stdout == listed
    assert registry.served("test/stays") == served
    extractor.machine.run(["ctr", "images", "delete", "--sync", image])


@pytest.mark.parametrize("kept_by", ["image", "lease"])
def test_what_was_unpacked_before_is_unpacked_again(
    extractor: ExtractorOnMachine, registry: Registry, kept_by: str
) -> None:
    """Contract 6.16 (ours): a file that a power cut emptied after it was unpacked is not taken; whoever kept the image still has it."""
    machine, image = extractor.machine, push(registry, f"torn-{kept_by}", Entry("gardener-node-agent", BINARY * 2))
    lease = ["ctr", "leases", "create", "--id", "others"]
    context = []
    if kept_by == "lease":
        machine.run(lease)
        context = ["env", "CONTAINERD_LEASE=others"]
    machine.run([*context, "ctr", "images", "pull", "--hosts-dir", HOSTS, image])
    empty_unpacked(extractor, BINARY * 2)
    assert extractor.extract(image, wanted()) == {TOOL: True}
    assert machine.read(TOOL) == BINARY * 2
    assert machine.run(["ctr", "images", "list", "--quiet"]).stdout.split() == [image]
    machine.run(["ctr", "images", "delete", "--sync", image])
    if kept_by == "lease":
        machine.run(["ctr", "leases", "delete", "--sync", "others"])
    assert extractor.leftovers() == []


def test_what_somebody_stands_on_is_taken_as_it_is(extractor: ExtractorOnMachine, registry: Registry) -> None:
    """Contract 6.16 (ours): a layer that is in use cannot be unpacked again; that is said, and nobody loses it."""
    machine, image = extractor.machine, push(registry, "in-use", Entry("gardener-node-agent", BINARY * 3))
    machine.run(["ctr", "images", "pull", "--hosts-dir", HOSTS, image])
    machine.run(["mkdir", "-p", "/mnt/others"])
    machine.run(["ctr", "images", "mount", image, "/mnt/others"])
    assert extractor.extract(image, wanted()) == {TOOL: True}
    assert machine.read(TOOL) == BINARY * 3
    assert machine.read("/mnt/others/gardener-node-agent") == BINARY * 3
    machine.run(["ctr", "images", "unmount", "--rm", "/mnt/others"])
    machine.run(["ctr", "images", "delete", "--sync", image])
    assert extractor.leftovers() == []


def test_w33_nothing_stays_of_an_image_that_came_for_its_files(
    extractor: ExtractorOnMachine, registry: Registry
) -> None:
    """Contract 9 W33: after success and failure no mount, lease, snapshot, content, record or scratch file is left."""
    image = small(registry, "traces")
    assert extractor.extract(image, wanted()) == {TOOL: True}
    assert extractor.leftovers() == []
    assert "not in image" in str(extractor.extract(image, wanted("/missing"))[TOOL])
    assert extractor.leftovers() == []


def test_a_registry_that_refuses_is_the_error_of_every_file(extractor: ExtractorOnMachine, registry: Registry) -> None:
    """Contract 6.16: each target has the error, which names the image and the cause."""
    image = small(registry, "refused").replace(registry.host, "registry.lab.internal:5999")
    answers = extractor.extract(image, wanted(), wanted(target="/opt/bin/other"))
    for answer in answers.values():
        assert "image not pulled" in str(answer)
        assert image in str(answer)
        assert "connection refused" in str(answer)


def test_a_registry_that_goes_away_in_the_middle(extractor: ExtractorOnMachine, plain: Registry) -> None:
    """Contract 6.16: half a layer is an error, the old file stays, and with the registry back the next attempt succeeds."""
    image = push(plain, "away", Entry("gardener-node-agent", LARGE))
    extractor.machine.write(TOOL, b"old", 0o755)
    with breaking(plain, after_bytes=2_000_000, end="close") as host:
        extractor.know(plain, host=host)
        answer = extractor.extract(image.replace(plain.host, host), wanted())[TOOL]
    assert "image not pulled" in str(answer)
    assert extractor.machine.read(TOOL) == b"old"
    assert extractor.leftovers() == []
    assert extractor.extract(image, wanted()) == {TOOL: True}
    assert extractor.machine.read(TOOL) == LARGE


def test_a_registry_that_stalls_ends_at_the_deadline(extractor: ExtractorOnMachine, plain: Registry) -> None:
    """Contract 9 W25, W33: the pull ends at its deadline; nothing is left, neither the lease of the killed `ctr`."""
    image = push(plain, "stalls", Entry("gardener-node-agent", LARGE))
    with breaking(plain, after_bytes=2_000_000, end="stall") as host:
        extractor.know(plain, host=host)
        answer = extractor.extract(image.replace(plain.host, host), wanted(), pull_seconds=2)[TOOL]
    assert "no end after 2 s" in str(answer)
    assert extractor.leftovers() == []


def test_one_image_does_not_wait_for_another(
    extractor: ExtractorOnMachine, registry: Registry, plain: Registry
) -> None:
    """Contract 6.16: while one registry stalls until the deadline, files of another image are there; its lease survives."""
    stalled = push(plain, "beside-1", Entry("gardener-node-agent", LARGE))
    good = small(registry, "beside-2")
    with breaking(plain, after_bytes=2_000_000, end="stall") as host:
        extractor.know(plain, host=host)
        images = {stalled.replace(plain.host, host): [wanted(target="/opt/bin/late")], good: [wanted()]}
        answers = extractor.extract_all(images, pull_seconds=2)
    assert answers[TOOL] is True
    assert "no end" in str(answers["/opt/bin/late"])
    assert list(answers) == [TOOL, "/opt/bin/late"], "in the order in which they were answered"


def test_a_cancelled_extraction_leaves_nothing(extractor: ExtractorOnMachine, plain: Registry) -> None:
    """Contract 9 W33: cancelled in the middle of a pull, it removes everything before it ends."""
    image = push(plain, "cancelled", Entry("gardener-node-agent", LARGE))
    with breaking(plain, after_bytes=2_000_000, end="stall") as host:
        extractor.know(plain, host=host)
        extractor.cancel(image.replace(plain.host, host), wanted(), after=1.5)
    assert extractor.leftovers() == []


def test_w33_a_start_removes_what_a_kill_left_of_a_pull(extractor: ExtractorOnMachine, plain: Registry) -> None:
    """Contract 9 W33: after SIGKILL in the middle of a pull, `clean` removes its lease; that of somebody else stays."""
    image = push(plain, "killed", Entry("gardener-node-agent", LARGE))
    extractor.machine.run(["ctr", "leases", "create", "--id", "somebody-else"])
    with breaking(plain, after_bytes=2_000_000, end="stall") as host:
        extractor.know(plain, host=host)
        with pulling(extractor, image.replace(plain.host, host)) as process:
            kill_all(extractor, process)
    assert [line for line in extractor.leftovers() if line != "leases: somebody-else"] != []
    extractor.clean()
    assert extractor.leftovers() == ["leases: somebody-else"]
    extractor.machine.run(["ctr", "leases", "delete", "somebody-else"])


def test_w33_a_start_removes_what_a_kill_left_of_a_mount(extractor: ExtractorOnMachine, registry: Registry) -> None:
    """Contract 9 W33: a view that is still mounted, with lease, snapshot and record, is gone after `clean`; so is GNA's."""
    image, label = small(registry, "mounted"), "node-agent.gardener.cloud/extraction=true"
    directory = f"{SCRATCH}/mount-image-123456"
    extractor.machine.run(["ctr", "images", "pull", "--hosts-dir", HOSTS, "--label", label, image])
    extractor.machine.run(["mkdir", "-p", directory])
    extractor.machine.run(["ctr", "images", "mount", image, directory])
    assert len(extractor.leftovers()) > 4
    extractor.clean()
    assert extractor.leftovers() == []


def test_a_next_extraction_cleans_first(extractor: ExtractorOnMachine, registry: Registry, plain: Registry) -> None:
    """Contract 9 W33: what could not be cleaned at the start, because containerd was down, goes with the next extraction."""
    image = push(plain, "later", Entry("gardener-node-agent", LARGE))
    with breaking(plain, after_bytes=2_000_000, end="stall") as host:
        extractor.know(plain, host=host)
        with pulling(extractor, image.replace(plain.host, host)) as process:
            kill_all(extractor, process)
    extractor.machine.systemctl("stop", "containerd.service")
    try:
        assert "not removed" in extractor.clean()
    finally:
        extractor.machine.systemctl("start", "containerd.service")
    assert extractor.extract(small(registry, "cleans"), wanted()) == {TOOL: True}


def test_a_full_disk_below_the_target(extractor: ExtractorOnMachine, registry: Registry) -> None:
    """Contract 6.5: no room for the file is said so, with its path; the old file stays and nothing lies beside it."""
    image = push(registry, "full-target", Entry("gardener-node-agent", LARGE))
    with extractor.machine.small_disk("/opt/small"):
        extractor.machine.write("/opt/small/tool", b"old")
        answer = extractor.extract(image, wanted(target="/opt/small/tool"))["/opt/small/tool"]
        assert "No space left on device" in str(answer)
        assert "/opt/small/tool" in str(answer)
        assert extractor.machine.run(["ls", "-A", "/opt/small"]).stdout.split() == ["lost+found", "tool"]
        assert extractor.machine.read("/opt/small/tool") == b"old"


def test_a_full_disk_below_containerd(extractor: ExtractorOnMachine, registry: Registry) -> None:
    """Contract 6.16: no room for the image is said so, and half of a layer does not keep the disk full."""
    image = push(registry, "full-containerd", Entry("gardener-node-agent", LARGE))
    machine = extractor.machine
    machine.systemctl("stop", "containerd.service")
    with machine.small_disk("/var/lib/containerd", size_bytes=16 * 1024 * 1024):
        machine.systemctl("start", "containerd.service")
        answer = extractor.extract(image, wanted())[TOOL]
        assert "no space left on device" in str(answer)

        def used() -> int:
            return int(machine.run(["df", "--output=used", "/var/lib/containerd"]).stdout.split()[1])

        wait_for(lambda: used() < 1024, timeout=20, what="the half of the layer to be collected")
        assert extractor.leftovers() == []
        machine.systemctl("stop", "containerd.service")
    machine.systemctl("start", "containerd.service")


def test_containerd_that_is_down_is_an_ordinary_failure(extractor: ExtractorOnMachine, registry: Registry) -> None:
    """Contract 9 W32: without containerd each file has an error that says so; with it back the next attempt succeeds."""
    image = small(registry, "down")
    extractor.machine.systemctl("stop", "containerd.service")
    try:
        assert "containerd.sock" in str(extractor.extract(image, wanted())[TOOL])
    finally:
        extractor.machine.systemctl("start", "containerd.service")
    assert extractor.extract(image, wanted()) == {TOOL: True}


@pytest.mark.parametrize("image", ["", "--help", 'x"y', "a b", "registry.lab.internal:5000/no/such:image"])
def test_a_reference_that_is_none_is_an_error(extractor: ExtractorOnMachine, image: str) -> None:
    """Contract 6.16: what is no reference, or names nothing, is the error of the file and never an option of `ctr`."""
    assert "image not pulled" in str(extractor.extract(image, wanted())[TOOL])
