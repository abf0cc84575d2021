"""A machine on which the real OSC controller has worked, looked at by somebody else."""

from pathlib import Path

import pytest

from tests.support.fake_systemd import FakeSystemd
from tests.support.looked_at import LookedAt


@pytest.fixture
async def node(tmp_path: Path, host: FakeSystemd) -> LookedAt:
    """A machine with a registered Node, a running agent unit, a configuration and a certificate."""
    looked_at = LookedAt(tmp_path, host)
    looked_at.register_node()
    await looked_at.furnish()
    return looked_at
