"""Who is acting on which unit."""

import pytest

from nodeagent.host.units_in_use import UnitsInUse


def test_a_unit_is_in_use_for_as_long_as_anybody_acts_on_it() -> None:
    """Contract 7.9: a unit is in use until the last of its users is done, whatever ends them."""
    units = UnitsInUse()
    assert units.user("kubelet.service") is None
    with units.using("kubelet.service", "containerd.service", by="first"):
        with pytest.raises(ValueError, match="broken"), units.using("kubelet.service", by="second"):
            raise ValueError("broken")
        assert (units.user("kubelet.service"), units.user("containerd.service")) == ("first", "first")
        assert units.user("other.service") is None
    assert units.user("kubelet.service") is None


def test_work_that_is_bound_to_no_block_is_asked_for() -> None:
    """Contract 7.9: a user with jobs that go on is asked each time."""
    units, pending = UnitsInUse(), {"kubelet.service"}
    units.also_used("osc", pending.__contains__)
    assert units.user("kubelet.service") == "osc"
    pending.clear()
    assert units.user("kubelet.service") is None
