"""Steps before the controllers."""

import stat
from pathlib import Path

import pytest

from agents.core.generations import Generations
from agents.core.yamlio import load_yaml
from nodeagent.config import ApiServer
from nodeagent.host.machine_name import MachineNameMissing, read_machine_name
from nodeagent.paths import Paths
from nodeagent.startup.kubelet_bootstrap_kubeconfig import KubeletBootstrapKubeconfig
from nodeagent.startup.stale_files import StaleFiles
from osc.diff import diff
from osc.journal import Journal
from osc.merge import Effective
from osc.types import DropIn, File, FileContent, Inline, Unit
from tests.support.clock import FakeClock

API_SERVER = ApiServer(server="api.example", ca_file="/var/lib/gardener-node-agent/cluster-ca.crt")


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A machine below a temporary directory."""
    found = Paths(root=tmp_path)
    found.credentials.mkdir(parents=True)
    return found


async def test_kubelet_gets_a_bootstrap_kubeconfig(paths: Paths) -> None:
    """Contract 7.10: names, server, CA file and the trimmed token; 0600; the directory is 0755 (W22)."""
    paths.bootstrap_token.write_text(" abc.def \n")
    await KubeletBootstrapKubeconfig(paths=paths, api_server=API_SERVER).run()
    written = paths.kubelet_bootstrap_kubeconfig
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.kubelet.stat().st_mode) == 0o755
    assert load_yaml(written.read_bytes()) == {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "kubelet-bootstrap",
                "cluster": {"server": "https://api.example", "certificate-authority": API_SERVER.ca_file},
            }
        ],
        "users": [{"name": "kubelet-bootstrap", "user": {"token": "abc.def"}}],
        "contexts": [
            {"name": "kubelet-bootstrap", "context": {"cluster": "kubelet-bootstrap", "user": "kubelet-bootstrap"}}
        ],
        "current-context": "kubelet-bootstrap",
    }


@pytest.mark.parametrize("content", [b"", b" \n"])
async def test_w30_a_token_file_that_says_nothing_gives_the_kubelet_nothing(paths: Paths, content: bytes) -> None:
    """Contract 7.10, 9 W30: a power cut may empty the token's file; what the kubelet has to bootstrap itself with is not replaced then."""
    paths.bootstrap_token.write_bytes(content)
    paths.kubelet.mkdir(parents=True)
    paths.kubelet_bootstrap_kubeconfig.write_text("with a token")
    await KubeletBootstrapKubeconfig(paths=paths, api_server=API_SERVER).run()
    assert paths.kubelet_bootstrap_kubeconfig.read_text() == "with a token"


@pytest.mark.parametrize("present", ["nothing", "kubeconfig", "certificate"])
async def test_kubelet_that_has_joined_gets_none(paths: Paths, present: str) -> None:
    """Contract 7.10: without a token, or with kubelet credentials, nothing is written."""
    if present != "nothing":
        paths.bootstrap_token.write_text("abc.def")
        file = paths.kubelet_kubeconfig if present == "kubeconfig" else paths.kubelet_client_certificate
        file.parent.mkdir(parents=True)
        file.write_text("x")
    await KubeletBootstrapKubeconfig(paths=paths, api_server=API_SERVER).run()
    assert not paths.kubelet_bootstrap_kubeconfig.exists()


async def test_older_configurations_bring_the_ca_inline(paths: Paths) -> None:
    """Contract 2: with only `caBundle` the CA is inline."""
    paths.bootstrap_token.write_text("abc.def")
    await KubeletBootstrapKubeconfig(paths=paths, api_server=ApiServer(server="https://a", ca_bundle="Q0E=")).run()
    document = load_yaml(paths.kubelet_bootstrap_kubeconfig.read_bytes())
    assert isinstance(document, dict)
    assert document["clusters"][0]["cluster"] == {"server": "https://a", "certificate-authority-data": "Q0E="}


@pytest.mark.parametrize(("content", "name"), [("m-1", "m-1"), ("m-1\n", "m-1"), ("m-1 \r\nrest", "m-1 \r")])
def test_machine_name_is_the_first_line_untrimmed(tmp_path: Path, content: str, name: str) -> None:
    """Contract 1.4: the first line, no trimming of blanks or CR."""
    (tmp_path / "f").write_bytes(content.encode())
    assert read_machine_name(tmp_path / "f") == name


@pytest.mark.parametrize("content", [None, "", "\nx"])
def test_machine_name_is_mandatory(tmp_path: Path, content: str | None) -> None:
    """Contract 1.4: without a machine name the process ends."""
    if content is not None:
        (tmp_path / "f").write_text(content)
    with pytest.raises(MachineNameMissing):
        read_machine_name(tmp_path / "f")


async def test_stale_files_of_ours_go_and_others_stay(paths: Paths, clock: FakeClock) -> None:
    """At start nothing of ours is left beside managed files and in `tmp/`; somebody else's temporary file stays."""
    journal = Journal(
        pending_path=paths.pending_changes,
        last_applied_path=paths.last_applied,
        generations=Generations(paths.generations),
        clock=clock,
    )
    file = File(path="/etc/a/f", content=FileContent(inline=Inline(data="x")))
    unit = Unit(name="u.service", content="x", drop_ins=(DropIn(name="d.conf", content="x"),))
    document = {
        "spec": {
            "files": [{"path": "/etc/last", "content": {"inline": {"data": "x"}}}],
            "units": [{"name": "l.service", "content": "x"}],
        }
    }
    journal.begin("1", diff(Effective(), old=Effective()))
    journal.commit(document)
    journal.begin("2", diff(Effective((file,), (unit,)), old=Effective()))
    ours = [
        paths.base / ".last-applied-osc.yaml.tmp",
        paths.credentials / ".kubeconfig.tmp",
        paths.credentials / ".pending-request.json.tmp",
        paths.credentials / ".ca-bundle.crt.tmp",
        paths.root / "etc/a/.f.tmp",
        paths.root / "etc/.last.tmp",
        paths.systemd / ".u.service.tmp",
        paths.systemd / ".l.service.tmp",
        paths.systemd / "u.service.d/.d.conf.tmp",
        paths.root / "tokens/.t.tmp",
        paths.temporary / "left/over",
    ]
    foreign = paths.root / "etc/a/.g.tmp"
    for path in (*ours, foreign):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    await StaleFiles(paths=paths, journal=journal, others=(paths.root / "tokens/t",)).run()
    assert [str(path) for path in ours if path.exists()] == []
    assert foreign.exists()
    assert stat.S_IMODE(paths.temporary.stat().st_mode) == 0o700
    assert list(paths.temporary.iterdir()) == []


async def test_a_mounted_image_is_not_deleted(paths: Paths) -> None:
    """Contract 9 W33: where a kill left an image mounted, nothing below is removed; that is up to who can unmount it."""
    mounted = paths.temporary / "mount-image-1/usr/bin/tool"
    mounted.parent.mkdir(parents=True)
    mounted.touch()
    paths.extractions.touch()
    (paths.temporary / "copy-image-1").mkdir()
    await StaleFiles(
        paths=paths,
        journal=Journal(
            pending_path=paths.pending_changes,
            last_applied_path=paths.last_applied,
            generations=Generations(paths.generations),
            clock=FakeClock(),
        ),
    ).run()
    assert mounted.exists()
    assert sorted(path.name for path in paths.temporary.iterdir()) == ["extractions.json", "mount-image-1"]
