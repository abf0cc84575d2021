"""The unit manager against the fake systemd, which the machine tests compare with the real one."""

from tests.support.systemd_behaviour import SystemdBehaviour


class TestWithFake(SystemdBehaviour):
    """All behaviour that is the same with a real systemd."""
