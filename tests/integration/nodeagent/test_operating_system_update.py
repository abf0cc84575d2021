"""An update of the operating system that hangs: in real time, because virtual time stands still while a program runs."""

from datetime import timedelta
from pathlib import Path

import pytest

from nodeagent.controllers.operatingsystemconfig import inplace
from nodeagent.controllers.operatingsystemconfig.inplace import UpdateGivenUp
from tests.lab.api import wait_for
from tests.support.fake_systemd import FakeSystemd
from tests.support.in_place import drain, metadata, publish, run_os
from tests.support.osc_agent import OscAgent


async def test_w36_an_update_that_hangs_is_ended_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 9 W36, 6.13: after its time it is killed with all that it started, and label, annotation and event say so."""
    host = FakeSystemd(tmp_path)
    await host.start()
    node = OscAgent(tmp_path, host)
    node.register_node()
    run_os(node, "1.0.0")
    publish(node)
    async with node.connected():
        await node.reconcile()
        node.start_process()
    drain(node)
    monkeypatch.setattr(inplace, "BUDGET", timedelta(seconds=1))
    publish(node, version="2.0", command=f"sleep 600 & echo $! > {tmp_path}/child; echo down''loading; wait")
    async with node.connected():
        with pytest.raises(UpdateGivenUp):
            await node.reconcile()
    result, reason, _version = metadata(node)
    assert result == "failed"
    for text in (reason or "", *node.update_failures):
        assert "did not end in time" in text
        assert "downloading" in text
    child = Path(f"/proc/{int((tmp_path / 'child').read_text())}/stat")
    wait_for(lambda: not child.exists() or child.read_text().split()[2] == "Z", timeout=5, what="the child to end")
    await host.stop()
