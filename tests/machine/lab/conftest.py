"""The lab's own tests use its fixtures like everybody else."""

from tests.lab.fixtures import agent, lab, machine

__all__ = ["agent", "lab", "machine"]
