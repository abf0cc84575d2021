"""A release is built from a clean checkout, as `make release-check` does it."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_everything_is_built_from_a_clean_checkout() -> None:
    """`make binary deb image` in a fresh clone of HEAD, the checkout clean afterwards, and one version in all places."""
    done = subprocess.run(
        ["make", "--no-print-directory", "release-check"], cwd=ROOT, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "Building binary, deb, image of " in done.stdout
    for place in ("gardener-node-agent version", "gardenlet.deb man page", "gardenlet bill of materials"):
        assert re.search(rf"^  {place} +\d+\.\d+\.\d+$", done.stdout, re.M), done.stdout
    assert re.search(r"^\d+ places, 0 differences$", done.stdout, re.M), done.stdout
