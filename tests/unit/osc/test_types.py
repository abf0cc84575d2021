"""OSC types: wire form and semantic equality."""

import pytest

from osc.types import (
    Containerd,
    CRIConfig,
    DropIn,
    File,
    FileContent,
    ImageRef,
    Inline,
    InPlaceUpdates,
    InPlaceUpdatesStatus,
    OperatingSystemConfig,
    OperatingSystemUpdate,
    SecretRef,
    Unit,
)


def test_wire_form_leaves_out_what_go_would() -> None:
    """Contract 6.4: optional fields that are unset are left out, the others are always there."""
    assert Unit(name="a").to_wire() == {"name": "a"}
    assert File(path="/a").to_wire() == {"path": "/a", "content": {}}
    assert DropIn(name="d").to_wire() == {"name": "d", "content": ""}
    assert FileContent(inline=Inline(data="x")).to_wire() == {"inline": {"encoding": "", "data": "x"}}
    assert Unit(name="a", content="", enable=False).to_wire() == {"name": "a", "content": "", "enable": False}


FULL_UNIT = {
    "name": "a.service",
    "command": "start",
    "enable": True,
    "content": "[Unit]",
    "dropIns": [{"name": "d", "content": "c"}],
    "filePaths": ["/a"],
}
FULL_FILES = [
    {
        "path": "/a",
        "permissions": 0,
        "hostName": "h",
        "content": {"inline": {"encoding": "b64", "data": "eA=="}, "transmitUnencoded": True},
    },
    {"path": "/b", "content": {"secretRef": {"name": "s", "dataKey": "k"}}},
    {"path": "/c", "content": {"imageRef": {"image": "i", "filePathInImage": "/f"}}},
]


def test_wire_form_reads_back() -> None:
    """Contract 5.3: every field of units and files goes to its JSON name and back."""
    unit = Unit.model_validate(FULL_UNIT)
    assert unit.to_wire() == FULL_UNIT
    files = [File.model_validate(file) for file in FULL_FILES]
    assert [file.to_wire() for file in files] == FULL_FILES
    assert files[1].content.secret_ref == SecretRef(name="s", data_key="k")
    assert files[2].content.image_ref == ImageRef(image="i", file_path_in_image="/f")


def test_absent_null_and_empty_are_equal() -> None:
    """Contract 5.2: nil and empty lists are equal; a set empty string is not the same as none."""
    plain = Unit(name="a")
    assert Unit.model_validate({"name": "a", "dropIns": [], "filePaths": None, "content": None}) == plain
    assert Unit.model_validate({"name": "a", "content": ""}) != plain
    assert (
        OperatingSystemConfig.model_validate({"spec": None, "status": {"extensionUnits": None}})
        == OperatingSystemConfig()
    )


def test_sections_of_runtime_and_updates_are_read() -> None:
    """Contract 5.3: container runtime and updates in place, in spec and status."""
    config = OperatingSystemConfig.model_validate(
        {
            "spec": {
                "criConfig": {"name": "containerd", "cgroupDriver": "systemd", "containerd": {"sandboxImage": "p"}},
                "inPlaceUpdates": {"kubelet": "1.34"},
            },
            "status": {"inPlaceUpdates": {"osUpdate": {"command": "x"}}},
        }
    )
    assert config.spec.cri_config == CRIConfig(
        name="containerd", cgroup_driver="systemd", containerd=Containerd(sandbox_image="p")
    )
    assert config.spec.in_place_updates == InPlaceUpdates(kubelet="1.34")
    assert config.status.in_place_updates == InPlaceUpdatesStatus(os_update=OperatingSystemUpdate(command="x"))


@pytest.mark.parametrize(("permissions", "mode"), [(None, 0o600), (0, 0), (0o644, 0o644), (0o104755, 0o755)])
def test_only_nine_permission_bits_count(permissions: int | None, mode: int) -> None:
    """Contract 6.5: 0600 by default; only the nine permission bits have an effect."""
    assert File(path="/a", permissions=permissions).mode == mode


def test_paths_of_a_unit() -> None:
    """Contract 3: unit files and drop-ins lie in /etc/systemd/system."""
    unit = Unit(name="a.service", content="", drop_ins=(DropIn(name="d"),))
    assert unit.written_paths() == ("/etc/systemd/system/a.service", "/etc/systemd/system/a.service.d/d")
    assert Unit(name="a.service").written_paths() == ()
