"""Image extraction in a machine of the lab: the extractor alone, from the source tree, without an agent around it."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nodeagent.host.image_extractor import Extraction
from tests.lab.agent import SOURCE_ENVIRONMENT, SOURCE_PYTHON, AgentSource
from tests.lab.machine import Machine
from tests.lab.registry import CA_FILE, Registry
from tests.lab.verify import image_leftovers

SCRATCH = "/var/lib/gardener-node-agent/tmp"
HOSTS = "/etc/containerd/certs.d"
_DRIVER = "/opt/extraction-driver.py"
_ENVIRONMENT = [f"{name}={value}" for name, value in SOURCE_ENVIRONMENT.items()]
_COMMAND = ["env", *_ENVIRONMENT, SOURCE_PYTHON, _DRIVER]

Answers = dict[str, bool | str]
"""By target: whether bytes changed, or the error's text."""


def wanted(source: str = "/gardener-node-agent", target: str = "/opt/bin/tool", mode: int = 0o755) -> Extraction:
    """Return an extraction with what most tests do not care about filled in."""
    return Extraction(source, target, mode)


@dataclass(frozen=True, slots=True)
class ExtractorOnMachine:
    """The extractor, as a process of its own for each call.

    Attributes:
        machine: where it runs.
    """

    machine: Machine

    @classmethod
    def install(cls, machine: Machine, source: AgentSource) -> "ExtractorOnMachine":
        """Put the source tree on a machine."""
        source.install(machine)
        machine.write(_DRIVER, Path(__file__).with_name("extraction_driver.py").read_bytes())
        return cls(machine)

    def know(self, registry: Registry, *, host: str | None = None) -> None:
        """Write `hosts.toml` of a registry, and its CA; or of a relay before it, under another host and port."""
        host = host or registry.host
        url = registry.url.replace(registry.host, host)
        self.machine.write(CA_FILE, registry.ca_pem)
        ca = f'  ca = ["{CA_FILE}"]\n' if registry.kind == "tls" else ""
        text = f'server = "{url}"\n\n[host."{url}"]\n  capabilities = ["pull", "resolve"]\n{ca}'
        self.machine.write(f"{HOSTS}/{host}/hosts.toml", text.encode())

    def extract(self, image: str, *extractions: Extraction, pull_seconds: float = 60) -> Answers:
        """Copy files out of one image."""
        return self.extract_all({image: extractions}, pull_seconds=pull_seconds)

    def seconds(self, image: str, *extractions: Extraction) -> float:
        """Return how long it takes to copy files out of one image, without the start of the process; all must succeed."""
        done = json.loads(self.machine.run(_COMMAND, input=_job({image: extractions}), timeout=120).stdout)
        assert all(answer is True for answer in done["answers"].values()), done
        return float(done["seconds"])

    def seconds_of_ctr_alone(self, image: str, extraction: Extraction) -> tuple[float, float]:
        """Return how long `ctr` and `cp` take for the same, without and with a sync of the file at the end."""
        script = Path(__file__).with_name("ctr_alone.py").read_text()
        done = self.machine.run(["python3", "-c", script, image, extraction.source, extraction.target])
        unsynced, synced = map(float, done.stdout.split())
        return unsynced, synced

    def extract_all(self, images: Mapping[str, Sequence[Extraction]], *, pull_seconds: float = 60) -> Answers:
        """Copy files out of several images at the same time."""
        done = self.machine.run(_COMMAND, input=_job(images, pull_seconds=pull_seconds), timeout=120)
        answers: Answers = json.loads(done.stdout)["answers"]
        return answers

    def cancel(self, image: str, *extractions: Extraction, after: float) -> None:
        """Begin, and cancel the call after so many seconds; returns when the process has ended in order."""
        done = self.machine.run(_COMMAND, input=_job({image: extractions}, cancel_after=after), timeout=120)
        assert json.loads(done.stdout) is None, done.stdout

    def clean(self) -> str:
        """Call `clean` as a start of the agent does; returns what was logged."""
        return self.machine.run(_COMMAND, input=_job({}, clean=True), timeout=120).stderr

    def start(self, image: str, *extractions: Extraction) -> "subprocess.Popen[bytes]":
        """Begin in the background; the caller ends the process."""
        process = subprocess.Popen(
            self.machine.command(_COMMAND), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdin is not None
        process.stdin.write(_job({image: extractions}).encode())
        process.stdin.close()
        return process

    def ingests(self) -> list[str]:
        """Return what containerd has of layers that did not arrive completely."""
        return self.machine.run(["ctr", "content", "active"]).stdout.splitlines()[1:]

    def leftovers(self) -> list[str]:
        """Return mounts, leases, snapshots, content, image records and files that an extraction left."""
        mounts = self.machine.run(["cat", "/proc/mounts"]).stdout.splitlines()
        found = [f"mount {line}" for line in mounts if SCRATCH in line]
        found += [f"file {name}" for name in self.machine.run(["sh", "-c", f"ls -A {SCRATCH}"]).stdout.split()]
        found += [f"temporary {path}" for path in self.machine.run(["find", "/opt", "-name", ".*.tmp"]).stdout.split()]
        return found + image_leftovers(self.machine)


def _job(
    images: Mapping[str, Sequence[Extraction]],
    *,
    pull_seconds: float = 60,
    cancel_after: float | None = None,
    clean: bool = False,
) -> str:
    job: dict[str, Any] = {
        "images": [(image, [asdict(extraction) for extraction in wanted]) for image, wanted in images.items()],
        "pullSeconds": pull_seconds,
        "cancelAfter": cancel_after,
        "clean": clean,
    }
    return json.dumps(job)
