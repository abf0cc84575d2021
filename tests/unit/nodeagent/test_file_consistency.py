"""The start-up comparison of disk and last-applied: what is reported, what is left alone, and that it is never fatal."""

from collections.abc import Collection
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

import pytest
import yaml

from agents.core.generations import Generations
from agents.kube.models import Node
from nodeagent.host.consistency import Finding, inspect
from nodeagent.startup import file_consistency
from nodeagent.startup.file_consistency import FileConsistency
from osc.diff import diff
from osc.journal import Journal
from osc.merge import Effective
from osc.types import File, FileContent, Inline, Unit
from systemd.manager import SystemdUnitManager
from tests.support.clock import FakeClock

NODE = Node.model_validate({"metadata": {"name": "worker-1"}})


class Check:
    """The step, with a machine whose systemd cannot be reached."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = Path("/")
        self.journal = Journal(
            pending_path=folder / "pending",
            last_applied_path=folder / "last",
            generations=Generations(folder / "generations"),
            clock=FakeClock(),
        )
        self.reported: list[str] = []
        self.repaired: list[Finding] = []
        self.node: Node | None = NODE

    def apply(self, *paths: Path) -> None:
        """Pretend that these files were applied with the content `x`."""
        files = [
            {"path": str(path), "content": {"inline": {"encoding": "", "data": "x"}}, "hostName": "worker-1"}
            for path in paths
        ]
        self.journal.begin("v1", diff(Effective(), old=None))
        self.journal.commit({"spec": {"files": files}})

    def apply_secret(self, path: Path, digest: str) -> None:
        """Pretend that this file was applied with the content of a Secret that has this digest."""
        reference = {"path": str(path), "content": {"secretRef": {"name": "s", "dataKey": "k"}}}
        self.journal.begin("v1", diff(Effective(), old=None), secret_digests={str(path): digest})
        self.journal.commit({"spec": {"files": [reference]}})

    def _report(self, _node: Node, finding: Finding) -> None:
        self.reported.append(finding.reason)

    def _repair(self, findings: Collection[Finding]) -> None:
        self.repaired.extend(findings)

    async def run(self) -> None:
        """Run the step."""
        units = SystemdUnitManager(address=f"unix:path={self.folder}/nobody")
        step = FileConsistency(
            journal=self.journal,
            units=units,
            hostname="worker-1",
            root=self.root,
            node=lambda: self.node,
            report=self._report,
            repair=self._repair,
        )
        await step.run()
        await units.close()


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """A machine below a folder."""
    return Check(tmp_path)


@pytest.mark.parametrize(("found", "reasons"), [("x", []), ("y", ["FileMismatch"]), (None, ["FileMissing"])])
async def test_files_out_of_secrets_are_compared_by_digest(
    check: Check, tmp_path: Path, found: str | None, reasons: list[str]
) -> None:
    """Contract 7.11, OURS: what was written out of a Secret is known by its SHA-256."""
    if found is not None:
        (tmp_path / "a").write_text(found)
    check.apply_secret(tmp_path / "a", sha256(b"x").hexdigest())
    await check.run()
    assert check.reported == reasons
    assert [finding.path for finding in check.repaired] == [str(tmp_path / "a")] * len(reasons)


async def test_differences_are_reported_and_handed_over_for_repair(check: Check, tmp_path: Path) -> None:
    """Contract 7.11: a file that is missing and one that differs: two Warnings, two repairs; D-Bus away is not fatal."""
    (tmp_path / "b").write_text("other")
    (tmp_path / "c").write_text("x")
    check.apply(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    await check.run()
    assert check.reported == ["FileMissing", "FileMismatch"]
    assert [finding.path for finding in check.repaired] == [f"{tmp_path}/a", f"{tmp_path}/b"]


OF_GARDENER = {
    "apiVersion": "extensions.gardener.cloud/v1alpha1",
    "kind": "OperatingSystemConfig",
    "spec": {
        "files": [
            {"path": "/etc/others", "content": {"inline": {"encoding": "", "data": "x"}}, "hostName": "worker-2"},
            {"path": "/etc/ours", "content": {"inline": {"encoding": "", "data": "x"}}, "hostName": "worker-1"},
        ],
        "units": [
            {
                "name": "a.service",
                "content": "x",
                "dropIns": [{"name": "10.conf", "content": "x"}],
                "filePaths": ["/etc/used"],
            }
        ],
    },
}


async def test_w13_names_are_those_of_the_api(check: Check, tmp_path: Path) -> None:
    """Contract 7.11, 9 W13: a last-applied that others wrote: its `dropIns` and `filePaths` are seen, files of other hosts are not."""
    check.root = tmp_path
    (tmp_path / "last").write_text(yaml.safe_dump(OF_GARDENER))
    unit = tmp_path / "etc/systemd/system/a.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("x")
    await check.run()
    assert check.reported == ["FileMissing", "DropInMissing", "DependencyMissing"]
    assert [finding.path for finding in check.repaired] == ["/etc/ours", None, "/etc/used"]


async def test_without_node_or_last_applied_nothing_is_said(check: Check, tmp_path: Path) -> None:
    """Contract 7.11: silently skipped."""
    await check.run()
    check.apply(tmp_path / "a")
    check.node = None
    await check.run()
    assert check.reported == []


async def test_a_damaged_last_applied_is_not_fatal(check: Check, tmp_path: Path) -> None:
    """Contract 7.11: a last-applied file that cannot be read ends nothing."""
    (tmp_path / "last").write_bytes(b'{"spec": {"files": [')
    await check.run()
    assert check.reported == []


async def test_a_disk_that_does_not_let_itself_be_looked_at_is_not_fatal(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 7.11: never fatal: an agent that ends for it is started again and again, and its heartbeat says that all is well."""
    check.root = tmp_path
    unit_file = tmp_path / "etc/systemd/system/a.service"
    unit_file.parent.mkdir(parents=True)
    unit_file.write_text("x")
    unit = {"name": "a.service", "content": "x", "filePaths": ["/etc/missing"]}
    check.journal.begin("v1", diff(Effective(), old=None))
    check.journal.commit({"spec": {"units": [unit]}})

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(file_consistency, "inspect", fail)
        await check.run()
    assert check.repaired == []
    await check.run()
    assert [finding.reason for finding in check.repaired] == ["DependencyMissing"]


async def test_what_an_unfinished_apply_touched_is_no_damage(check: Check, tmp_path: Path) -> None:
    """Contract 7.11, 6.4: a file that an interrupted apply was about to write is left to that apply."""
    check.apply(tmp_path / "a", tmp_path / "b")
    content = FileContent(inline=Inline(data="y"))
    check.journal.begin("v2", diff(Effective((File(path=f"{tmp_path}/a", content=content),)), old=Effective()))
    await check.run()
    assert [finding.path for finding in check.repaired] == [f"{tmp_path}/b"]


def test_a_unit_file_that_is_a_loop_of_links_is_a_finding(tmp_path: Path) -> None:
    """Contract 7.11: never fatal: a unit file that links to itself counts as missing and does not end the start."""
    folder = tmp_path / "etc/systemd/system"
    folder.mkdir(parents=True)
    (folder / "a.service").symlink_to("a.service")
    found = inspect(Effective((), (Unit(name="a.service", content="x"),)), loaded_units=None, root=tmp_path)
    assert [finding.reason for finding in found] == ["UnitFileMissing"]
