"""Annotations, labels and finalizers that several controllers use; each is compared or written by other components.

Source: gardener pkg/apis/core/v1beta1/constants/types_constants.go (contract controllers 1.2, 1.3).
"""

OPERATION = "gardener.cloud/operation"
"""Annotation: what is to be done with the object."""
TIMESTAMP = "gardener.cloud/timestamp"
"""Annotation: when it was asked for, RFC 3339 with fractions of a second, UTC."""
CONFIRM_DELETION = "confirmation.gardener.cloud/deletion"
"""Annotation without which admission refuses a deletion."""

OPERATION_RECONCILE = "reconcile"
OPERATION_MIGRATE = "migrate"
OPERATION_RESTORE = "restore"
OPERATION_WAIT_FOR_STATE = "wait-for-state"

FINALIZER = "gardener"
"""On Shoot, Seed, BackupBucket, BackupEntry, Bastion and ManagedSeed."""
