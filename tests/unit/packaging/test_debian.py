"""Debian's packages for gardenlet's image, with an apt that answers what the test tells it."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from image import debian
from tests.lab.errors import LabError
from tests.lab.progress import silent

NAMES = ("base-files", "ca-certificates", "gcc-12-base", "libc6", "libgcc-s1")
TELL = f"for name in {' '.join(NAMES)}; do echo \"'http://mirror/$name.deb' ${{name}}_1_amd64.deb 7 SHA256:{'0' * 64}\"; done"
APT = """\
#!/bin/sh
shift 3
echo "$*" >> {calls}
case "$*" in
  update) {update} ;;
  *--print-uris*) {ask} ;;
  *) {get} ;;
esac
"""
DPKG = """\
#!/bin/sh
file=${2##*/}
echo "Package: ${file%%_*}"
echo "Depends: gcc-12-base (= 1), libc6"
"""


@dataclass
class Host:
    """A host of which only apt and dpkg are seen."""

    folder: Path

    def install(self, *, ask: str = TELL, update: str = ":", get: str = "touch libc6_1_amd64.deb") -> None:
        """Put apt on PATH, with what it does when asked where packages are, to update, and to get some."""
        text = APT.format(calls=self.folder / "calls", ask=ask, update=update, get=get)
        for name, script in {"apt-get": text, "dpkg-deb": DPKG}.items():
            (self.folder / name).write_text(script)
            (self.folder / name).chmod(0o755)

    def calls(self) -> list[str]:
        """Return how apt was called."""
        return (self.folder / "calls").read_text().splitlines()

    def refusal(self) -> str:
        """Fetch; return the error, which is one line."""
        with pytest.raises(LabError) as caught:
            debian.fetch(self.folder / "packages", silent)
        assert "\n" not in str(caught.value)
        return str(caught.value)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host whose programs are before all others."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Host(tmp_path)


def test_lists_are_read_where_there_are_none(host: Host, tmp_path: Path) -> None:
    """Apt that knows nothing is updated once; the package with the licence of the compiler's library comes too."""
    marker = tmp_path / "lists"
    host.install(ask=f"[ -e {marker} ] || exit 100; {TELL}", update=f"touch {marker}")
    found = [package.name for package in debian.fetch(tmp_path / "packages", silent)]
    assert found == ["base-files", "ca-certificates", "libc6", "libgcc-s1", "gcc-12-base"]
    assert host.calls().count("update") == 1
    assert [path.name for path in (tmp_path / "packages").iterdir()] == ["libc6_1_amd64.deb"]


def test_a_failed_update_is_the_error(host: Host) -> None:
    """What apt said, and that the source has to be repaired; nothing is asked for again."""
    host.install(ask="exit 100", update="echo 'E: The repository http://mirror is not signed.' >&2; exit 100")
    error = host.refusal()
    assert error.startswith("apt-get update failed: E: The repository http://mirror is not signed.; repair the source")
    assert host.calls()[-1] == "update"


def test_a_mirror_that_did_not_answer_is_named_although_apt_calls_that_a_success(host: Host) -> None:
    """`apt-get update` ends with 0 and a warning; it is the cause of what follows."""
    host.install(
        ask='for i in 1 2 3 4; do echo "E: Unable to locate package $i"; done >&2; exit 100',
        update="echo 'W: Failed to fetch http://mirror/InRelease  Connection refused' >&2",
    )
    assert host.refusal() == (
        "apt does not know base-files, ca-certificates, libc6, libgcc-s1: W: Failed to fetch http://mirror/InRelease  Connection "
        "refused; E: Unable to locate package 1; E: Unable to locate package 2; E: Unable to locate package 3; E: Unable to locate "
        "package 4; run `apt-get update` and `apt-cache policy base-files`: Debian's own packages "
        "must be among the sources below /etc/apt"
    )


def test_packages_that_cannot_be_got_are_named_with_the_cause(host: Host, tmp_path: Path) -> None:
    """Lists older than the mirror are the usual cause, so the next step is to read them; nothing half-done stays."""
    host.install(
        get="touch libc6_1_amd64.deb; echo 'E: Failed to fetch http://mirror/libc6.deb  404  Not Found' >&2; exit 100"
    )
    assert host.refusal() == (
        "apt cannot get base-files, ca-certificates, libc6, libgcc-s1: E: Failed to fetch http://mirror/libc6.deb  404  Not Found; "
        "run `apt-get update`, then `make image` again"
    )
    assert list((tmp_path / "packages").iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"apt-get", "dpkg-deb", "calls", "packages"}


def test_a_long_complaint_is_cut_to_its_end(host: Host) -> None:
    """The last lines say why; a thousand before them do not fill the screen."""
    lines = "i=0; while [ $i -lt 1000 ]; do echo \"W: warning $i\"; i=$((i+1)); done; echo 'E: Disk full.'; echo"
    host.install(ask="exit 100", update=f"{{ {lines}; }} >&2; exit 100")
    assert host.refusal().startswith(
        "apt-get update failed: W: warning 997; W: warning 998; W: warning 999; E: Disk full.; repair"
    )
    host.install(ask="exit 100", update="printf 'E: %05000d.' 0 >&2; exit 100")
    assert len(host.refusal()) < 800


def test_silence_is_said(host: Host) -> None:
    """An apt that fails without a word leaves no hole in the message."""
    host.install(get="exit 100")
    assert ": it does not say why; run `apt-get update`" in host.refusal()


def test_apt_that_does_not_end_is_stopped(host: Host) -> None:
    """A mirror that hangs is an error like any other, with the command, the time and the next step."""
    host.install(update="exec sleep 60")
    with pytest.raises(LabError, match=r"^apt-get update did not end within 0\.2 s: .* run `make image` again$"):
        debian._apt("update", seconds=0.2)
