"""The bundle of `diagnose`: what somebody elsewhere needs to look at this machine, without a secret in it.

Neither credentials nor the content of any managed file is taken in; logs and state are redacted. It is written for its owner
alone all the same.
"""

import io
import json
import os
import tarfile
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

from agents.core import files, process
from agents.core.errors import AgentError, RetriableError
from agents.inspection.document import to_json
from nodeagent.inspection.diagnose import Diagnosis
from nodeagent.inspection.redaction import redact_document, redact_text
from nodeagent.inspection.status import Status
from nodeagent.paths import Paths
from osc.codec import load_state
from osc.types import OWN_UNIT
from systemd.states import UnitState

JOURNAL_LINES = 2000
JOURNALS = (OWN_UNIT, "kubelet.service", "containerd.service")
_DEADLINE = timedelta(seconds=20)
_MODE = 0o600


class BundleNotWritten(RetriableError):
    """The bundle's file cannot be written; fields: `path` and `problem`."""


async def collect(
    diagnosis: Diagnosis, status: Status, units: Iterable[UnitState], *, paths: Paths
) -> Mapping[str, bytes]:
    """Return the files of the bundle by name; what cannot be had is said in its place."""
    found = {
        "diagnosis.json": redact_text(to_json(diagnosis)).encode(),
        "status.json": redact_text(to_json(status)).encode(),
        "units.txt": "".join(f"{unit.name}\t{unit.description}\n" for unit in units).encode(),
    }
    for path in (paths.desired, paths.last_applied, paths.pending_changes, paths.status, paths.restarts):
        found[f"state/{path.name}"] = _state(path)
    for unit in JOURNALS:
        found[f"logs/{unit}.log"] = await _journal(unit)
    return found


def write(path: Path, contents: Mapping[str, bytes], *, now: datetime) -> None:
    """Write a new file, 0600; one that exists is not overwritten. Blocking.

    Raises:
        BundleNotWritten: with the reason.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
        with (
            open(descriptor, "wb") as file,  # noqa: PTH123 - a descriptor, not a path
            tarfile.open(fileobj=file, mode="w:gz") as archive,
        ):
            for name, content in contents.items():
                entry = tarfile.TarInfo(f"gardener-node-agent/{name}")
                entry.size, entry.mode, entry.mtime = len(content), _MODE, int(now.timestamp())
                archive.addfile(entry, io.BytesIO(content))
    except OSError as error:
        problem = error.strerror or type(error).__name__
        raise BundleNotWritten("bundle not written", path=str(path), problem=problem) from error


def _state(path: Path) -> bytes:
    try:
        content = files.read_optional(path)
        if content is None:
            return b"not there\n"
        return json.dumps(redact_document(load_state(content)), indent=2, sort_keys=True).encode() + b"\n"
    except (AgentError, ValueError) as error:
        return f"not readable: {redact_text(str(error))}\n".encode()


async def _journal(unit: str) -> bytes:
    command = ["journalctl", "--no-pager", "--output=short-iso-precise", f"--lines={JOURNAL_LINES}", f"--unit={unit}"]
    try:
        done = await process.run(command, deadline=_DEADLINE)
    except AgentError as error:
        return f"not readable: {redact_text(str(error))}\n".encode()
    return redact_text(done.stdout.decode(errors="replace")).encode()
