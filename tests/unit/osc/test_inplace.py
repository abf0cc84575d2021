"""Which parts of an update in place are due."""

import json
from typing import Any

import pytest

from osc.codec import decode
from osc.errors import InvalidOSC
from osc.inplace import InPlaceChanges, in_place_changes
from osc.types import OperatingSystemConfig

KUBELET = "/var/lib/kubelet/config/kubelet"
TIME, LATER = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


def config(
    *, os: str = "1.2.0", kubelet: str = "1.33.1", rotation: Any = None, file: bool = True, **settings: Any
) -> OperatingSystemConfig:
    """Return an OSC for updates in place."""
    wanted = {"operatingSystemVersion": os, "kubelet": kubelet, "credentialsRotation": rotation}
    inline = {"inline": {"encoding": "", "data": json.dumps(settings)}}
    files = [{"path": KUBELET, "content": inline}] if file else []
    return decode(json.dumps({"spec": {"inPlaceUpdates": wanted, "files": files}}).encode()).config


def due(new: OperatingSystemConfig, old: OperatingSystemConfig | None, *, running: str = "1.2.0") -> tuple[str, ...]:
    """Return the names of what is due."""
    return in_place_changes(new, old, running).names


def test_nothing_is_due_where_nothing_differs() -> None:
    """Contract 6.13: equal OSCs; and on the first run, and from an OSC that was not for updates in place."""
    assert due(config(), config()) == ()
    assert due(config(os="2.0.0"), None) == ()
    assert due(config(os="2.0.0"), OperatingSystemConfig()) == ()
    assert due(OperatingSystemConfig(), config()) == ()


def test_the_running_operating_system_counts() -> None:
    """Contract 6.13, Appendix C (differences): compared with the machine, not with the old OSC."""
    assert due(config(os="1.3"), config(os="1.2"), running="1.2.9") == ("operating_system",)
    assert due(config(os="1.3"), config(os="1.2"), running="1.3.4") == ()


@pytest.mark.parametrize(
    ("version", "expected"), [("1.33.9", ()), ("1.34.0", ("kubelet_minor_version",)), ("2.33.1", ())]
)
def test_kubelet_minor_version(version: str, expected: tuple[str, ...]) -> None:
    """Contract 6.13, Appendix C (differences): the kubelet's minor number alone."""
    assert due(config(kubelet=version), config()) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"evictionHard": {"memory.available": "1"}}, {"evictionHard": {"memory.available": "2"}}, ("kubelet_config",)),
        ({"evictionHard": {"other": "1"}}, {"evictionHard": {"other": "2"}}, ()),
        ({"kubeReserved": {"cpu": "80m"}}, {"kubeReserved": {"cpu": "90m"}}, ("kubelet_config",)),
        ({"kubeReserved": {"pid": "1k"}}, {}, ("kubelet_config",)),
        ({"systemReserved": {"cpu": "80m"}}, {}, ()),
        ({"cpuManagerPolicy": "none"}, {"cpuManagerPolicy": "static"}, ("kubelet_cpu_manager_policy",)),
        ({"cpuManagerPolicy": ""}, {}, ()),
        ({"maxPods": 1}, {"maxPods": 2}, ()),
    ],
)
def test_kubelet_configuration(old: dict[str, Any], new: dict[str, Any], expected: tuple[str, ...]) -> None:
    """Contract 6.13, Appendix C (differences): eviction thresholds, reserved resources and the CPU manager's policy; nothing else."""
    assert due(config(**new), config(**old)) == expected


def test_reserved_resources_must_be_quantities() -> None:
    """Contract 6.13, Appendix C (differences): reserved resources: any other text is an error."""
    with pytest.raises(InvalidOSC, match=r"kubeReserved\.cpu"):
        due(config(kubeReserved={"cpu": "much"}), config())


def test_reserved_resources_that_were_no_quantities_can_be_mended() -> None:
    """Contract 6.13, ours: what is wrong in the configuration before is only a difference."""
    assert due(config(kubeReserved={"cpu": "1"}), config(kubeReserved={"cpu": "much"})) == ("kubelet_config",)


def test_w35_a_kubelet_configuration_that_is_not_inline_is_an_error() -> None:
    """Contract 9 W35: explained; where only the old one is missing, everything that the new one says counts as new."""
    with pytest.raises(InvalidOSC, match="inline"):
        due(config(file=False), config())
    assert due(config(cpuManagerPolicy="static"), config(file=False)) == ("kubelet_cpu_manager_policy",)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, None, False),
        (None, {"lastInitiationTime": TIME}, True),
        ({}, {"lastInitiationTime": TIME}, True),
        ({"lastInitiationTime": TIME}, {"lastInitiationTime": "2026-01-01T00:00:00+00:00"}, False),
        ({"lastInitiationTime": TIME}, {"lastInitiationTime": LATER}, True),
        ({"lastInitiationTime": TIME}, None, False),
    ],
)
def test_rotations(before: Any, now: Any, expected: bool) -> None:
    """Contract 6.13, Appendix C (differences): credentials: a new time of initiation, or a first one."""
    for kind, names in (
        ("certificateAuthorities", {"kubelet_certificate_authorities", "own_certificate_authorities"}),
        ("serviceAccountKey", {"service_account_key"}),
    ):
        found = due(config(rotation={kind: now}), config(rotation=None if before is None else {kind: before}))
        assert set(found) == (names if expected else set())


def test_what_is_left() -> None:
    """Parts are taken away by name, and what concerns the kubelet is known."""
    changes = InPlaceChanges(operating_system=True, kubelet_config=True)
    assert changes.kubelet
    assert changes.without(["kubelet_config"]).names == ("operating_system",)
    assert not changes.without(["kubelet_config", "operating_system"])
