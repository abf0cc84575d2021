"""Bad OSCs: nothing on the machine changes, one event names every problem, and the next version is tried."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.lab.api import wait_for
from tests.lab.worker_osc import AGENT_FOLDER, AGENT_UNIT
from tests.support.worker import Worker, service

Document = dict[str, Any]


def inline(path: str, data: str = "x", **fields: Any) -> Document:
    """Return a file entry."""
    return {"path": path, "content": {"inline": {"encoding": "", "data": data}}, **fields}


def add_files(*files: Document) -> Callable[[Document], None]:
    """Return a change that adds files."""
    return lambda document: document["spec"]["files"].extend(files)


def add_unit(**unit: Any) -> Callable[[Document], None]:
    """Return a change that adds a unit."""
    return lambda document: document["spec"]["units"].append(unit)


def set_spec(**fields: Any) -> Callable[[Document], None]:
    """Return a change of the spec."""
    return lambda document: document["spec"].update(fields)


def content(**sources: Any) -> Document:
    """Return a file with these content sources."""
    return {"path": "/opt/test/f", "content": sources}


def containerd(**section: Any) -> dict[str, Any]:
    """Return settings of containerd."""
    return {"name": "containerd", "containerd": {"sandboxImage": "x", **section}}


def registry(upstream: str) -> Callable[[Document], None]:
    """Return a change that brings a registry."""
    return set_spec(criConfig=containerd(registries=[{"upstream": upstream}]))


OWN = "/var/lib/gardener-node-agent"
REFUSED: dict[str, tuple[Callable[[Document], None], str]] = {
    "kind": (lambda document: document.update(kind="Pod"), "kind"),
    "apiVersion": (lambda document: document.update(apiVersion="v1"), "apiVersion"),
    "dot dot": (add_files(inline("/opt/../etc/passwd")), "spec.files[8].path"),
    "relative": (add_files(inline("opt/f")), "spec.files[8].path"),
    "unit name with slash": (add_unit(name="../x.service", content="x"), "spec.units[3].name"),
    "drop-in name": (
        add_unit(name="x.service", dropIns=[{"name": "..", "content": "x"}]),
        "spec.units[3].dropIns[0].name",
    ),
    "two sources": (
        add_files(content(inline={"data": "x"}, secretRef={"name": "a", "dataKey": "b"})),
        "spec.files[8].content",
    ),
    "no source": (add_files(content()), "spec.files[8].content"),
    "bad base64": (add_files(content(inline={"encoding": "b64", "data": "%"})), "spec.files[8].content.inline"),
    "encoding": (add_files(content(inline={"encoding": "gzip", "data": "x"})), "spec.files[8].content.inline"),
    "path twice": (add_files(inline("/opt/test/a"), inline("/opt/test/a")), "spec.files[9].path"),
    "folder of another": (add_files(inline("/opt/test/a"), inline("/opt/test/a/b")), "spec.files"),
    "credentials": (add_files(inline(f"{OWN}/credentials/kubeconfig")), "spec.files[8].path"),
    "last applied": (add_files(inline(f"{OWN}/last-applied-osc.yaml")), "spec.files[8].path"),
    "journal": (add_files(inline(f"{OWN}/last-computed-osc-changes.yaml")), "spec.files[8].path"),
    "tmp": (add_files(inline(f"{OWN}/tmp/x")), "spec.files[8].path"),
    "desired": (add_files(inline(f"{OWN}/desired-osc.yaml")), "spec.files[8].path"),
    "wrong type": (add_files({"path": 5, "content": {}}), "spec.files[8].path"),
    "upstream above": (registry(".."), "spec.criConfig.containerd.registries[0].upstream"),
    "empty upstream": (registry(""), "spec.criConfig.containerd.registries[0].upstream"),
    "upstream with a slash": (registry("a/b"), "spec.criConfig.containerd.registries[0].upstream"),
    "plugin values": (
        set_spec(criConfig=containerd(plugins=[{"path": ["a"], "values": "text"}])),
        "spec.criConfig.containerd.plugins[0].values",
    ),
    "way out of an image": (
        add_files(content(imageRef={"image": "x", "filePathInImage": "/../etc/shadow"})),
        "spec.files[8].content.imageRef.filePathInImage",
    ),
    "no static pod": (add_files(inline("/etc/kubernetes/manifests/x.yaml", "kind: Service")), "manifests/x.yaml"),
    "no version": (set_spec(inPlaceUpdates={"operatingSystemVersion": "new"}), "spec.inPlaceUpdates"),
}


def state(worker: Worker) -> dict[str, bytes]:
    """Return what must not change: state files, and the list of files in the unit directory."""
    names = ["last-applied-osc.yaml", "last-computed-osc-changes.yaml", "desired-osc.yaml", "credentials/kubeconfig"]
    found = {name: worker.machine.read(f"{AGENT_FOLDER}/{name}") for name in names}
    found["units"] = worker.machine.run(["ls", "-laR", "/etc/systemd/system"]).stdout.encode()
    return found


def wait_ready(worker: Worker) -> None:
    """Wait until the agent has nothing to complain of, so that what it complains of later is new."""
    wait_for(
        lambda: (worker.status()["phase"], worker.status()["items"]) == ("applied", []),
        timeout=20,
        what="an agent that is content",
    )


def told(worker: Worker, text: str) -> int:
    """Return how often events with a text in them said that an OSC was refused."""
    events = [event for event in worker.events("OSCInvalid") if text in event["message"]]
    return sum((event.get("series") or {}).get("count", 1) for event in events)


@contextmanager
def refused_for(worker: Worker, problem: str) -> Iterator[None]:
    """Wait after a block that publishes an OSC until status file and one more event than before say what is wrong with it."""
    wait_ready(worker)
    before = told(worker, problem)
    yield

    def named() -> bool:
        status = worker.status()
        names = [item["name"] for item in status["items"] if problem in item["cause"]]
        return (status["phase"], names) == ("failing", ["operating system config"])

    wait_for(named, timeout=15, what=f"{problem!r} in the status file")
    # A repeat of an event that happened often may be delivered after some seconds only.
    wait_for(lambda: told(worker, problem) > before, timeout=25, what=f"one more event with {problem!r}")
    assert told(worker, problem) == before + 1


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_osc_changes_nothing_and_is_explained(worker: Worker, case: str) -> None:
    """Contract 5.4, 9 W7: refused before anything is touched, with an event that names the field, and no annotation."""
    before, applied = state(worker), worker.applied()
    # A harmless change beside the bad one must not be applied either.
    document = worker.base.with_file("/etc/motd-of-test", f"{case}\n").document()
    document["spec"]["files"] = [file for file in document["spec"]["files"] if file["path"] != "/etc/motd-of-test"]
    change, path = REFUSED[case]
    change(document)
    document["spec"]["files"].append(inline("/etc/motd-of-test", case))
    with refused_for(worker, path):
        worker.publish_bytes(yaml.safe_dump(document).encode())
    assert state(worker) == before
    assert worker.applied() == applied
    assert not worker.machine.exists("/etc/motd-of-test")


UNREADABLE = {
    b"spec: [": "did not find expected node content",
    b"\xff\xfe": "UnicodeDecodeError",
    b"[]": "not a mapping",
    b"spec: 5": "spec: Input should be a valid dictionary",
}


@pytest.mark.parametrize("data", UNREADABLE)
def test_an_osc_that_does_not_parse_changes_nothing(worker: Worker, data: bytes) -> None:
    """Contract 5.2: text that is no OSC is one event; the next version is tried."""
    before, applied = state(worker), worker.applied()
    with refused_for(worker, UNREADABLE[data]):
        worker.publish_bytes(data)
    assert state(worker) == before
    assert worker.applied() == applied


def test_all_problems_are_named_at_once(worker: Worker) -> None:
    """Three mistakes are in one event and one log line, each with its path."""
    document = worker.base.document()
    document["spec"]["files"] += [inline("relative"), inline("/a/../b")]
    document["spec"]["units"].append({"name": "a/b"})
    worker.publish_bytes(json.dumps(document).encode())
    paths = ("spec.files[8].path", "spec.files[9].path", "spec.units[3].name")

    def complete(text: str) -> bool:
        return all(path in text for path in paths)

    wait_for(
        lambda: any(complete(event["message"]) for event in worker.events("OSCInvalid")),
        timeout=15,
        what="event with three paths",
    )
    logged = [line for line in worker.machine.journal(AGENT_UNIT).splitlines() if complete(line)]
    assert len(logged) == 1


def test_unknown_fields_survive_in_last_applied(worker: Worker) -> None:
    """Contract 5.2: fields that are newer than we are do no harm and are kept in last-applied."""
    document = worker.base.document()
    document["spec"]["newer"] = {"a": 1}
    document["spec"]["files"][0]["alsoNewer"] = True
    worker.wait_applied(worker.publish_bytes(json.dumps(document).encode()))
    assert worker.last_applied()["spec"]["newer"] == {"a": 1}


def test_extension_units_and_files_are_merged(worker: Worker) -> None:
    """Contract 6.3: status units extend spec units of the same name, status files are written like the others."""
    document = worker.base.with_unit("test.service", content=service(), enable=True).document()
    document["status"] = {
        "extensionUnits": [
            {"name": "test.service", "dropIns": [{"name": "10.conf", "content": "[Unit]\nDescription=extended\n"}]}
        ],
        "extensionFiles": [inline("/opt/test/extension", "y")],
    }
    worker.wait_applied(worker.publish_bytes(json.dumps(document).encode()))
    assert worker.machine.unit("test.service")["Description"] == "extended"
    assert worker.machine.read("/opt/test/extension") == b"y"


def test_files_of_other_hosts_are_left_out(worker: Worker) -> None:
    """Contract 6.3: a file with another hostName is not written; ours with the same path is."""
    other, own = (
        inline("/opt/test/h", "other", hostName="elsewhere"),
        inline("/opt/test/h", "own", hostName=worker.machine.name),
    )
    document = worker.base.document()
    document["spec"]["files"] += [other, own, inline("/opt/test/only", hostName="elsewhere")]
    worker.wait_applied(worker.publish_bytes(json.dumps(document).encode()))
    assert worker.machine.read("/opt/test/h") == b"own"
    assert not worker.machine.exists("/opt/test/only")


@pytest.mark.parametrize("size", ["file", "osc"])
def test_what_is_too_large_is_refused(worker: Worker, size: str) -> None:
    """Contract 5.1: a file above 8 MiB decoded and an OSC above 16 MiB decompressed are refused; nothing changes."""
    import brotli

    data = "x" * (8 * 1024 * 1024 + 1) if size == "file" else "x" * (17 * 1024 * 1024)
    before, applied = state(worker), worker.applied()
    osc = json.dumps(worker.base.with_file("/opt/test/big", data).document()).encode()
    path = f"/api/v1/namespaces/kube-system/secrets/{worker.base.pool.secret_name}"
    payload = base64.b64encode(brotli.compress(osc, quality=4)).decode()
    with refused_for(worker, "spec.files[7].content.inline" if size == "file" else "decompresses to more than"):
        annotations = {"checksum/data-script": size}
        keys = {"osc.yaml": None, "osc.yaml.br": payload}
        worker.lab.api.patch(path, {"metadata": {"annotations": annotations}, "data": keys})
    assert state(worker) == before
    assert worker.applied() == applied
    worker.lab.api.patch(path, {"data": {"osc.yaml.br": None}})


def test_a_brotli_osc_is_read(worker: Worker) -> None:
    """Contract 5.1: without `osc.yaml` the key `osc.yaml.br` is decompressed and applied."""
    import brotli

    data = worker.base.with_file("/opt/test/br", "compressed").data()
    secret = worker.base.pool.secret_name
    path = f"/api/v1/namespaces/kube-system/secrets/{secret}"
    payload = base64.b64encode(brotli.compress(data)).decode()
    worker.lab.api.patch(
        path,
        {
            "metadata": {"annotations": {"checksum/data-script": "brotli"}},
            "data": {"osc.yaml": None, "osc.yaml.br": payload},
        },
    )
    worker.wait_applied("brotli")
    assert worker.machine.read("/opt/test/br") == b"compressed"
    worker.lab.api.patch(path, {"data": {"osc.yaml.br": None}})
