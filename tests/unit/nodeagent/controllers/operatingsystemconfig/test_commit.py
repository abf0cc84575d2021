"""The end of an apply is two writes, last-applied and the journal: whatever comes between them."""

import json
from typing import Any

import pytest

from agents.core.files import FileError
from tests.support.osc_agent import SLEEP, OscAgent, inline


def touched(node: OscAgent) -> dict[str, Any]:
    """Return what the journal says may differ from last-applied."""
    document = json.loads(node.paths.pending_changes.read_text())
    return {key: items for key, items in document["x-journal"]["touched"].items() if items}


async def test_a_kill_between_its_two_writes_is_made_good(node: OscAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 6.4: the next process finds all applied, and clears the journal: else it said so again at each look, and the next OSC would restart all."""
    journal = node.journal
    save = journal._save

    def killed(*, sync: bool) -> None:
        if node.paths.last_applied.exists():
            raise FileError("killed", node.paths.pending_changes, OSError("killed"))
        save(sync=sync)

    monkeypatch.setattr(journal, "_save", killed)
    units = [{"name": "a.service", "content": SLEEP}]
    checksum = node.publish(files=[inline("/etc/a", "one")], units=units)
    async with node.connected():
        with pytest.raises(FileError, match="killed"):
            await node.reconcile()
        assert touched(node)
        node.start_process()
        await node.reconcile()
        assert (touched(node), node.applied()) == ({}, checksum)
        calls = list(node.host.jobs)
        node.publish(files=[inline("/etc/a", "two")], units=units)
        await node.reconcile()
        assert node.host.jobs == calls
