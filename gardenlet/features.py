"""Feature gates: which there are, and what a configuration makes of them.

Source: gardener pkg/gardenlet/features/features.go, docs/deployment/feature_gates.md (contract core 1.8).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate; a graduated one is locked to its default."""

    default: bool
    stage: str
    locked: bool = False


GATES: Mapping[str, Gate] = {
    "DefaultSeccompProfile": Gate(default=False, stage="Alpha"),
    "IstioTLSTermination": Gate(default=True, stage="Beta"),
    "DoNotCopyBackupCredentials": Gate(default=True, stage="GA", locked=True),
    "OpenTelemetryCollector": Gate(default=True, stage="Beta"),
    "VictoriaLogsBackend": Gate(default=False, stage="Alpha"),
    "CustomDNSServerInNodeLocalDNS": Gate(default=True, stage="Beta"),
    "VPNBondingModeRoundRobin": Gate(default=False, stage="Alpha"),
    "PrometheusHealthChecks": Gate(default=False, stage="Alpha"),
    "RemoveVali": Gate(default=False, stage="Alpha"),
    "DisableNginxIngressInSeed": Gate(default=True, stage="Beta"),
    "RemoveHTTPProxyLegacyPort": Gate(default=False, stage="Alpha"),
}

UMBRELLAS: Mapping[str, str] = {"AllAlpha": "Alpha", "AllBeta": "Beta"}
"""Names that mean all gates of a stage which are not named themselves."""

OTHERS = frozenset(
    {
        "BackupEntryForGarden",
        "CloudProfileCapabilities",
        "DisableNginxIngressInGarden",
        "DisableNginxIngressInShoot",
        "InPlaceNodeUpdates",
        "LiveControlPlaneMigration",
        "VersionClassificationLifecycle",
    }
)
"""Gates of Gardener's other components: accepted, without effect here (ours)."""


def problems(configured: Mapping[str, bool]) -> Iterator[str]:
    """Yield what is wrong with configured gates as `featureGates.<name>: reason`."""
    for name, value in configured.items():
        gate = GATES.get(name)
        if gate is None and name not in OTHERS and name not in UMBRELLAS:
            yield f"featureGates.{name}: unknown feature gate"
        elif gate is not None and gate.locked and value is not gate.default:
            yield f"featureGates.{name}: locked to {str(gate.default).lower()}"


def ignored(configured: Mapping[str, bool]) -> list[str]:
    """Return the configured gates that have no effect here."""
    return sorted(OTHERS & configured.keys())


def effective(configured: Mapping[str, bool]) -> dict[str, bool]:
    """Return whether each gate is on."""
    umbrella = {stage: configured[name] for name, stage in UMBRELLAS.items() if name in configured}
    return {
        name: configured.get(name, gate.default if gate.locked else umbrella.get(gate.stage, gate.default))
        for name, gate in GATES.items()
    }
