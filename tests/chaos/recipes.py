"""OSCs for chaos, as plain values: a recipe can be drawn by Hypothesis, written to a file and repeated years later.

The universe is small, so that one OSC's items often meet another's: files that become folders, units that come and go,
drop-ins of the operating system's units, files of which units ask to be restarted, contents out of Secrets and images.

Two things are left out on purpose, because an earlier OSC leaves its traces by contract: folders stay, so no path is a
folder first and a file later; and the enablement of the operating system's units is not put back.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.lab.worker_osc import WorkerOsc

Recipe = Mapping[str, Any]
"""`files` by path, `units` by name, `registries` by upstream, `config`: number of the agent's own configuration; `sandbox`, if there: of
the image that containerd's configuration names for sandboxes."""

FOLDER = "/opt/test"
SECRET = "shoot-access-cluster-admin"
"""A Secret that agents may read anyway, so that none has to be waited for."""
OWN_UNITS = ("chaos-1.service", "chaos-2.service", "chaos-3.service")
VENDOR_UNITS = ("os-1.service", "os-2.service")
PATHS = (
    f"{FOLDER}/a",
    f"{FOLDER}/b",
    f"{FOLDER}/deep/er/c",
    "/etc/chaos.conf",
    "/etc/of-the-os",
    f"/etc/systemd/system/{VENDOR_UNITS[0]}.d/50-file.conf",
)
UPSTREAMS = ("one.example", "two.example")
VERSIONS = range(4)
"""Of the contents in Secrets and images."""

PROBED = "probed"
"""Stands for a registry whose mirror is the lab's own, and is to answer before it is used."""

LARGE = "large"
"""Stands for a text of many pages, so that recipes stay readable."""
_texts = st.sampled_from(["", "one\n", "two\n", "ü\n", LARGE])


@st.composite
def _files(draw: st.DrawFn) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in draw(st.lists(st.sampled_from(PATHS), unique=True, max_size=5)):
        if path.endswith(".conf") and "systemd" in path:
            found[path] = {"text": f"[Unit]\n# {draw(st.integers(0, 2))}\n", "mode": None}
            continue
        kind = draw(st.sampled_from(["text", "text", "b64", "secret", "image"]))
        value = draw(_texts) if kind in ("text", "b64") else draw(st.sampled_from(VERSIONS))
        found[path] = {kind: value, "mode": draw(st.sampled_from([None, 0o600, 0o644, 0o755]))}
    return found


@st.composite
def _units(draw: st.DrawFn, paths: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from((*OWN_UNITS, *VENDOR_UNITS)), unique=True, max_size=4)):
        unit: dict[str, Any] = {"dropIns": draw(_drop_ins)}
        if name in OWN_UNITS:
            unit["content"] = draw(st.integers(1, 3))
            unit["enable"] = draw(st.sampled_from([None, True, False]))
            # A unit that is to be stopped and enabled would be started by the next boot.
            commands = [None, "start", "restart", *(["stop"] if unit["enable"] is False else [])]
            unit["command"] = draw(st.sampled_from(commands))
            unit["fails"] = draw(st.sampled_from([False, False, False, True]))
        if paths:
            unit["filePaths"] = draw(st.lists(st.sampled_from(paths), unique=True, max_size=2))
        found[name] = unit
    return found


_drop_ins = st.dictionaries(st.sampled_from(["10.conf", "20.conf"]), st.integers(1, 3), max_size=2)


@st.composite
def recipes(draw: st.DrawFn) -> dict[str, Any]:
    """Any OSC of the universe."""
    files = draw(_files())
    return {
        "files": files,
        "units": draw(_units(sorted(files))),
        "registries": draw(st.dictionaries(st.sampled_from(UPSTREAMS), st.integers(1, 2), max_size=2)),
        "config": draw(st.sampled_from([None, None, 1, 2])),
    }


def sample(strategy: st.SearchStrategy[Any], number: int, seed_value: int) -> list[Any]:
    """Draw values with Hypothesis; the same seed gives the same."""
    found: list[Any] = []

    @seed(seed_value)
    @settings(
        max_examples=2 * number,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return (found * 2)[-number:]  # simple values come first


def harmless(recipe: Recipe) -> Recipe:
    """Return a recipe without units that fail, which can be applied to its end."""
    units = {name: {**unit, "fails": False} for name, unit in recipe["units"].items()}
    return {**recipe, "units": units}


def secret_text(version: int) -> str:
    """Return the content of a key of the Secret."""
    return f"secret {version}\n" * (version + 1)


def image_bytes(version: int) -> bytes:
    """Return the file in an image."""
    return f"from an image, version {version}\n".encode() * 5000


def content_of(file: Mapping[str, Any]) -> bytes:
    """Return what a file of a recipe holds on the machine."""
    if "secret" in file:
        return secret_text(file["secret"]).encode()
    if "image" in file:
        return image_bytes(file["image"])
    text: str = file.get("text", file.get("b64", ""))
    return b"a page of text\n" * 3000 if text == LARGE else text.encode()


def unit_text(content: int, *, fails: bool, file_paths: Sequence[str]) -> str:
    """Return a unit whose process carries in its environment what it was started with: version, and what the files held."""
    seen = f"cat {' '.join(file_paths)} | sha256sum" if file_paths else "true"
    command = f'/bin/sh -c "exec env SEEN=\\"$$({seen})\\" sleep {1000 + content}"'
    start = "/bin/false" if fails else command
    kind = "oneshot" if fails else "simple"
    return f"[Unit]\nDescription=chaos {content}\n[Service]\nType={kind}\nExecStart={start}\n[Install]\nWantedBy=multi-user.target\n"


def build(base: WorkerOsc, recipe: Recipe, images: Sequence[str]) -> WorkerOsc:
    """Return the OSC of a recipe.

    Args:
        base: what every worker has.
        recipe: what comes on top.
        images: references of the images, by version.
    """
    osc = base
    for path, file in recipe["files"].items():
        osc = _with_file(osc, path, file, images)
    for name, unit in recipe["units"].items():
        osc = osc.with_unit(name, **_unit_fields(unit))
    for upstream, version in recipe["registries"].items():
        osc = osc.with_registry({"upstream": upstream, "server": f"https://{upstream}", **_mirrors(base, version)})
    if "sandbox" in recipe:
        osc = osc.with_containerd(sandbox_image=f"sandbox.example/pause:{recipe['sandbox']}")
    if recipe["config"] is not None:
        path = base.pool.agent_config_path
        text = base.files[path]["content"]["inline"]["data"]
        osc = osc.with_file(path, f"{text}# {recipe['config']}\n", mode=0o600)
    return osc


def _mirrors(base: WorkerOsc, version: int | str) -> dict[str, Any]:
    if version == PROBED:
        return {"hosts": base.cri["containerd"]["registries"][-1]["hosts"], "readinessProbe": True}
    return {"hosts": [{"url": f"https://mirror-{number}.example"} for number in range(int(version))]}


def _with_file(osc: WorkerOsc, path: str, file: Mapping[str, Any], images: Sequence[str]) -> WorkerOsc:
    mode = file["mode"]
    if "image" in file:
        return osc.with_image_file(path, images[file["image"]], "/tool", mode)
    if "secret" in file:
        # The helper knows inline files only; the content is replaced.
        plain = osc.with_file(path, "", mode)
        reference = {"secretRef": {"name": SECRET, "dataKey": f"chaos-{file['secret']}"}}
        return WorkerOsc(
            osc.pool,
            osc.units,
            {**plain.files, path: {**plain.files[path], "content": reference}},
            osc.kubelet,
            osc.cri,
        )
    return osc.with_file(path, content_of(file) if "b64" in file else content_of(file).decode(), mode)


def _unit_fields(unit: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "dropIns": [
            {"name": name, "content": f"[Service]\nEnvironment=DROPPED_{name[:2]}={value}\n"}
            for name, value in sorted(unit["dropIns"].items())
        ]
    }
    paths = unit.get("filePaths", [])
    if paths:
        fields["filePaths"] = list(paths)
    if "content" in unit:
        fields["content"] = unit_text(unit["content"], fails=unit["fails"], file_paths=paths)
        for key in ("enable", "command"):
            if unit[key] is not None:
                fields[key] = unit[key]
    return fields


def secret_object() -> dict[str, Any]:
    """Return the Secret with all versions."""
    data = {f"chaos-{version}": base64.b64encode(secret_text(version).encode()).decode() for version in VERSIONS}
    return {"metadata": {"name": SECRET, "namespace": "kube-system"}, "type": "Opaque", "data": data}
