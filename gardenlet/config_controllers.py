"""Settings of each controller, with Gardener's defaults. Source: gardener pkg/apis/config/gardenlet/v1alpha1 (contract core 2.3)."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic import Field, model_validator

from agents.core.config import Duration
from gardenlet.config_model import GardenletModel


class Workers(GardenletModel):
    """How many objects are reconciled at once."""

    concurrent_syncs: int = 20


class FiveWorkers(Workers):
    """As above, five."""

    concurrent_syncs: int = 5


class BackupEntryController(Workers):
    """How long the backup of a deleted shoot is kept."""

    deletion_grace_period_hours: int = 0
    """Negative counts as 0."""
    deletion_grace_period_shoot_purposes: tuple[str, ...] = Field(default=(), strict=False)
    """Shoots that the grace period is for; empty for all."""

    @model_validator(mode="before")
    @classmethod
    def _no_negative_hours(cls, value: object) -> object:
        hours = value.get("deletionGracePeriodHours") if isinstance(value, Mapping) else None
        if isinstance(value, Mapping) and isinstance(hours, int) and hours < 0:
            return {**value, "deletionGracePeriodHours": 0}
        return value


class ControllerInstallationCare(Workers):
    """How often installed extensions are looked at."""

    sync_period: Duration = timedelta(seconds=30)


class ControllerInstallationRequired(Workers):
    """One controller for each kind of extension object."""

    concurrent_syncs: int = 1


class GardenletController(GardenletModel):
    """How often our own deployment is looked at."""

    sync_period: Duration = timedelta(hours=1)


class SeedController(GardenletModel):
    """How often the Seed is reconciled, and how often we say that we live."""

    sync_period: Duration = timedelta(minutes=1)
    lease_resync_seconds: int = 2
    """Between two beats."""
    lease_resync_miss_threshold: int = 10
    """Beats that may be missing before we count as dead."""


class ConditionThreshold(GardenletModel):
    """How long a condition is Progressing before it is False."""

    type: str = ""
    duration: Duration = timedelta(0)


class SeedCare(GardenletModel):
    """How often the seed's health is looked at."""

    sync_period: Duration = timedelta(seconds=30)
    condition_thresholds: tuple[ConditionThreshold, ...] = Field(default=(), strict=False)


class ShootController(Workers):
    """How Shoots are reconciled."""

    sync_period: Duration = timedelta(hours=1)
    retry_duration: Duration = timedelta(hours=12)
    """How long a failing operation is repeated."""
    respect_sync_period_overwrite: bool = False
    reconcile_in_maintenance_only: bool = False
    progress_report_period: Duration | None = None
    """None: at once."""
    dns_entry_ttl_seconds: int = Field(default=120, alias="dnsEntryTTLSeconds")


class StaleExtensionHealthChecks(GardenletModel):
    """Whether an extension that does not report any more makes a condition Unknown, and after how long."""

    enabled: bool = False
    """True where the whole block is absent."""
    threshold: Duration = timedelta(minutes=5)


class ShootCare(Workers):
    """How often Shoots' health is looked at."""

    sync_period: Duration = timedelta(minutes=1)
    stale_extension_health_checks: StaleExtensionHealthChecks = StaleExtensionHealthChecks(enabled=True)
    managed_resource_progressing_threshold: Duration | None = None
    """None: rollouts may take as long as they want."""
    condition_thresholds: tuple[ConditionThreshold, ...] = Field(default=(), strict=False)
    webhook_remediator_enabled: bool = False


class ShootState(FiveWorkers):
    """How often the state of Shoots is saved; 0 workers switch it off."""

    sync_period: Duration = timedelta(hours=6)


class NetworkPolicyController(FiveWorkers):
    """Further namespaces that get NetworkPolicies."""

    additional_namespace_selectors: tuple[dict[str, Any], ...] = Field(default=(), strict=False)


class ManagedSeedController(Workers):
    """How ManagedSeeds are reconciled."""

    sync_period: Duration = timedelta(hours=1)
    wait_sync_period: Duration = timedelta(seconds=15)
    sync_jitter_period: Duration = timedelta(minutes=5)
    jitter_updates: bool = False


class WorkloadIdentityTokens(FiveWorkers):
    """How long tokens of workload identities are valid."""

    token_expiration_duration: Duration = timedelta(hours=6)


class Controllers(GardenletModel):
    """Settings of each controller."""

    cache_sync_timeout: Duration = timedelta(minutes=2)
    backup_bucket: Workers = Workers()
    backup_entry: BackupEntryController = BackupEntryController()
    bastion: Workers = Workers()
    controller_installation: Workers = Workers()
    controller_installation_care: ControllerInstallationCare = ControllerInstallationCare()
    controller_installation_required: ControllerInstallationRequired = ControllerInstallationRequired()
    gardenlet: GardenletController = GardenletController()
    seed: SeedController = SeedController()
    seed_care: SeedCare = SeedCare()
    shoot: ShootController = ShootController()
    shoot_care: ShootCare = ShootCare()
    shoot_state: ShootState = ShootState()
    shoot_status: FiveWorkers = FiveWorkers()
    network_policy: NetworkPolicyController = NetworkPolicyController()
    managed_seed: ManagedSeedController = ManagedSeedController()
    token_requestor: FiveWorkers = FiveWorkers()
    """Of service accounts."""
    token_requestor_workload_identity: WorkloadIdentityTokens = WorkloadIdentityTokens()
    vpa_eviction_requirements: FiveWorkers = FiveWorkers()
