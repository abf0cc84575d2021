"""containerd's configuration as values."""

import json
from typing import Any

import pytest

from osc.codec import decode
from osc.containerd import UnusableConfig, hosts_toml, patched, with_environment
from osc.merge import Runtime
from osc.types import Plugin, Registry, RegistryHost

OLD, IMAGES, RUNTIME = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"
RUNC = {"containerd": {"runtimes": {"runc": {"options": {"SystemdCgroup": True}}}}}
IMPORTS = ["/etc/containerd/conf.d/*.toml"]
REGISTRY = {"config_path": "/etc/containerd/certs.d"}


def cri(version: int, **cni: Any) -> dict[str, Any]:
    """Return the plugins' tables that the settings below lead to."""
    if version < 3:
        return {OLD: {"registry": REGISTRY, "sandbox_image": "pause", "cni": cni, **RUNC}}
    images = {"registry": REGISTRY, "pinned_images": {"sandbox": "pause"}}
    return {IMAGES: images, RUNTIME: {"cni": cni, **RUNC}}


SETTINGS = Runtime(sandbox_image="pause", cgroup_driver="systemd")


@pytest.mark.parametrize("version", [1, 2, 3, 4])
@pytest.mark.parametrize("running", ["1.6.20~ds1", "2.1.4", "2.2.0", "2.3.0~ds2"])
def test_settings_of_every_version(version: int, running: str) -> None:
    """Contract 6.14, Appendix C (containerd): the table of keys for configuration versions 1 to 4, and containerd from 2.2 on."""
    lists = version >= 3 and running >= "2.2"
    cni = {"bin_dirs": ["/opt/cni/bin"]} if lists else {"bin_dir": "/opt/cni/bin"}
    expected = {"version": version, "imports": IMPORTS, "plugins": cri(version, **cni)}
    assert patched({"version": version}, SETTINGS, running) == expected


def test_a_file_without_version_is_of_version_1() -> None:
    """Contract 6.14: a missing key means 1."""
    assert OLD in patched({}, SETTINGS, "1.6.20")["plugins"]  # type: ignore[operator]


@pytest.mark.parametrize("version", [0, 5, "2", True, None, 2.0])
def test_an_unknown_version_is_refused(version: object) -> None:
    """Contract 6.14: an integer from 1 to 4, or an error."""
    with pytest.raises(UnusableConfig):
        patched({"version": version}, SETTINGS, "1.6.20")


def test_the_old_directory_of_cni_goes_where_a_list_replaces_it() -> None:
    """Contract 6.14: `bin_dir` is removed when `bin_dirs` is written; everything else in the file stays."""
    before = {
        "version": 3,
        "root": "/x",
        "plugins": {RUNTIME: {"cni": {"bin_dir": "/old", "max": 1}}, "other": {"a": 1}},
    }
    original = json.dumps(before)
    after: Any = patched(before, SETTINGS, "2.2.1")
    assert after["plugins"][RUNTIME]["cni"] == {"bin_dirs": ["/opt/cni/bin"], "max": 1}
    assert (after["root"], after["plugins"]["other"]) == ("/x", {"a": 1})
    assert json.dumps(before) == original, "the argument is not changed"


def test_settings_without_cgroup_driver_leave_it_alone() -> None:
    """Contract 6.14: the key is written only if the OSC says something; `cgroupfs` means false."""
    after: Any = patched({"version": 2}, Runtime(sandbox_image="p"), "1.6")
    assert "containerd" not in after["plugins"][OLD]
    after = patched({"version": 2}, Runtime(sandbox_image="p", cgroup_driver="cgroupfs"), "1.6")
    assert after["plugins"][OLD]["containerd"]["runtimes"]["runc"]["options"]["SystemdCgroup"] is False


@pytest.mark.parametrize(
    ("before", "after"),
    [([], IMPORTS), (["/a"], ["/a", *IMPORTS]), (IMPORTS, IMPORTS), ("text", IMPORTS), (None, IMPORTS)],
)
def test_imports_are_kept(before: object, after: list[str]) -> None:
    """Contract 6.14: appended unless present; what is no list is replaced."""
    assert patched({"version": 2, "imports": before}, SETTINGS, "1.6")["imports"] == after


def plugins(*changes: dict[str, Any], version: int = 2, **config: Any) -> Any:
    """Return the plugins' tables after some changes."""
    settings = Runtime(sandbox_image="p", plugins=tuple(Plugin.model_validate(change) for change in changes))
    return patched({"version": version, "plugins": config}, settings, "1.6")["plugins"]


def test_plugin_values_are_added_at_the_top_level() -> None:
    """Contract 6.14: top-level keys are added to the table, nested objects replace."""
    found = plugins({"path": ["a", "b"], "values": {"x": {"new": 1}, "y": 2}}, a={"b": {"x": {"old": 1}, "z": 3}})
    assert found["a"]["b"] == {"x": {"new": 1}, "y": 2, "z": 3}


def test_a_plugin_without_values_is_an_empty_table() -> None:
    """Contract 6.14: the table only."""
    assert plugins({"op": "add", "path": ["a", "b"]})["a"] == {"b": {}}


def test_a_plugin_is_removed() -> None:
    """Contract 6.14: the key is absent afterwards; missing is fine."""
    found = plugins(
        {"op": "remove", "path": ["a", "b"]}, {"op": "remove", "path": ["no", "such"]}, a={"b": {}, "c": {}}
    )
    assert found["a"] == {"c": {}}


def test_runtimes_are_translated_for_the_new_layout() -> None:
    """Contract 6.14: the prefix of runtimes moves to the runtime plugin from version 3 on; nothing else is translated."""
    runtime = {"path": [OLD, "containerd", "runtimes", "gvisor"], "values": {"runtime_type": "io"}}
    assert plugins(runtime, version=3)[RUNTIME]["containerd"]["runtimes"]["gvisor"] == {"runtime_type": "io"}
    assert plugins(runtime)[OLD]["containerd"]["runtimes"]["gvisor"] == {"runtime_type": "io"}
    assert plugins({"path": [OLD, "other"]}, version=3)[OLD] == {"other": {}}


def test_w15_integers_stay_integers() -> None:
    """Contract 9 W15: a whole number of the OSC is one in the file, a fraction stays one, null is left out."""
    document = {"spec": {"criConfig": {"name": "containerd", "containerd": {"plugins": [
        {"path": ["a"], "values": {"n": 5, "f": 0.5, "none": None, "deep": {"none": None, "list": [1, None]}}}
    ]}}}}  # fmt: skip
    section = decode(json.dumps(document).encode()).config.spec.cri_config
    assert section is not None
    assert section.containerd is not None
    table: Any = patched({"version": 2}, Runtime("p", plugins=section.containerd.plugins), "1.6")["plugins"]
    assert table["a"] == {"n": 5, "f": 0.5, "deep": {"list": [1]}}
    assert isinstance(table["a"]["n"], int)


def test_something_else_in_the_place_of_a_table_is_an_error() -> None:
    """Contract 6.14: with its path."""
    with pytest.raises(UnusableConfig, match="table") as raised:
        patched({"version": 2, "plugins": {OLD: "text"}}, SETTINGS, "1.6")
    assert raised.value.fields["path"] == f"plugins.{OLD}"


def test_bytes_of_hosts_toml() -> None:
    """Contract 6.15, Appendix D: the bytes are an interface."""
    hosts = (
        RegistryHost(url="A"),
        RegistryHost(url="B", capabilities=("pull",), ca_certs=("/path/ca.crt",), override_path=True),
    )
    assert hosts_toml(Registry(upstream="u", server="https://S", hosts=hosts)) == (
        '# managed by gardener-node-agent\nserver = "https://S"\n\n[host."A"]\n  capabilities = ["pull","resolve"]\n\n'
        '[host."B"]\n  capabilities = ["pull"]\n  ca = ["/path/ca.crt"]\n  override_path = true\n\n'
    )
    assert hosts_toml(Registry(upstream="u", hosts=hosts[:1])).startswith(
        '# managed by gardener-node-agent\n[host."A"]'
    )


@pytest.mark.parametrize(
    "units", [[], [{"name": "containerd.service", "filePaths": ["/a"], "dropIns": [{"name": "x"}]}]]
)
def test_the_environment_is_a_drop_in(units: list[dict[str, Any]]) -> None:
    """Contract 6.14, Appendix D: appended to the OSC's unit, or a unit of its own; part of what is remembered."""
    spec = {"units": units, "criConfig": {"name": "containerd", "containerd": {"sandboxImage": "p"}}}
    found = with_environment(decode(json.dumps({"spec": spec}).encode()), "/bin:/sbin")
    (unit,) = found.config.spec.units
    assert (unit.name, unit.content, len(unit.drop_ins)) == ("containerd.service", None, len(units) + 1)
    assert unit.drop_ins[-1].name == "30-env_config.conf"
    assert unit.drop_ins[-1].content == '[Service]\nEnvironment="PATH=/var/bin/containerruntimes:/bin:/sbin"\n'
    assert found.document["spec"]["units"][-1]["dropIns"][-1]["name"] == "30-env_config.conf"  # type: ignore[index]


@pytest.mark.parametrize("cri", [None, {"name": "other", "containerd": {}}, {"name": "containerd"}])
def test_without_settings_nothing_is_added(cri: object) -> None:
    """Contract 6.14: active only for containerd with a section."""
    decoded = decode(json.dumps({"spec": {"criConfig": cri}}).encode())
    assert with_environment(decoded, "/bin") is decoded
