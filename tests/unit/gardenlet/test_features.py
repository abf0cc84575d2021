"""Feature gates."""

import pytest

from gardenlet import features

DEFAULTS = {
    "DefaultSeccompProfile": False,
    "IstioTLSTermination": True,
    "DoNotCopyBackupCredentials": True,
    "OpenTelemetryCollector": True,
    "VictoriaLogsBackend": False,
    "CustomDNSServerInNodeLocalDNS": True,
    "VPNBondingModeRoundRobin": False,
    "PrometheusHealthChecks": False,
    "RemoveVali": False,
    "DisableNginxIngressInSeed": True,
    "RemoveHTTPProxyLegacyPort": False,
}


def test_defaults() -> None:
    """Contract core 1.8: the gates and their defaults."""
    assert features.effective({}) == DEFAULTS


def test_umbrellas() -> None:
    """Contract core 1.8: AllAlpha and AllBeta mean the gates of that stage that are not named; locked ones stay."""
    found = features.effective({"AllAlpha": True, "RemoveVali": False, "AllBeta": False, "IstioTLSTermination": True})
    assert {name for name, value in found.items() if value} == {
        "DefaultSeccompProfile",
        "VictoriaLogsBackend",
        "VPNBondingModeRoundRobin",
        "PrometheusHealthChecks",
        "RemoveHTTPProxyLegacyPort",
        "IstioTLSTermination",
        "DoNotCopyBackupCredentials",
    }


@pytest.mark.parametrize(
    ("configured", "refused"),
    [
        ({"Nonsense": True}, ["featureGates.Nonsense: unknown feature gate"]),
        ({"DoNotCopyBackupCredentials": False}, ["featureGates.DoNotCopyBackupCredentials: locked to true"]),
        ({"DoNotCopyBackupCredentials": True, "AllBeta": True, "RemoveVali": True}, []),
        ({"LiveControlPlaneMigration": True}, []),
    ],
)
def test_problems(configured: dict[str, bool], refused: list[str]) -> None:
    """Contract core 1.8: unknown names and a locked gate's other value are refused; other components' names are not (ours)."""
    assert list(features.problems(configured)) == refused


def test_other_components_gates_are_ignored() -> None:
    """Contract core 1.8 (ours): a gate of another component is told as having no effect, and has none."""
    assert features.ignored({"LiveControlPlaneMigration": True, "RemoveVali": True}) == ["LiveControlPlaneMigration"]
    assert features.effective({"LiveControlPlaneMigration": True}) == DEFAULTS
