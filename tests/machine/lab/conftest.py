"""The lab's own tests use its fixtures like everybody else."""

from tests.lab.fixtures import lab, machine

__all__ = ["lab", "machine"]
