"""Every path that the agent itself owns or reads on a node (contract, section 3)."""

from dataclasses import dataclass
from pathlib import Path

UNPACKED = ".gardener-node-agent.unpacked"
"""What packaging/launcher calls its directory."""


@dataclass(frozen=True, slots=True)
class Paths:
    """All paths below one root, so that a test can have a machine of its own."""

    root: Path = Path("/")

    @property
    def base(self) -> Path:
        """Directory of the agent's own state and credentials."""
        return self.root / "var/lib/gardener-node-agent"

    @property
    def temporary(self) -> Path:
        """Scratch directory, 0700."""
        return self.base / "tmp"

    @property
    def extractions(self) -> Path:
        """Says that files are being copied out of images; still there after a start if that was interrupted."""
        return self.temporary / "extractions.json"

    @property
    def image_mounts(self) -> str:
        """How the paths of directories begin at which images are mounted for a moment."""
        return str(self.temporary / "mount-image-")

    @property
    def credentials(self) -> Path:
        """Directory of kubeconfig and bootstrap token, 0700."""
        return self.base / "credentials"

    @property
    def kubeconfig(self) -> Path:
        """Our kubeconfig with the client certificate, 0600."""
        return self.credentials / "kubeconfig"

    @property
    def trusted_authorities(self) -> Path:
        """The CA bundle with which the API server was verified last, 0600."""
        return self.credentials / "ca-bundle.crt"

    @property
    def pending_request(self) -> Path:
        """Key and request of a client certificate that is not in use yet, 0600."""
        return self.credentials / "pending-request.json"

    @property
    def bootstrap_token(self) -> Path:
        """Bootstrap token from user data; removed once the node has joined."""
        return self.credentials / "bootstrap-token"

    @property
    def cluster_ca(self) -> Path:
        """The API server's CA, for the bootstrap client."""
        return self.base / "cluster-ca.crt"

    @property
    def machine_name(self) -> Path:
        """Name of the Machine, part of the client certificate's subject."""
        return self.base / "machine-name"

    @property
    def zone(self) -> Path:
        """Zone of the node; written by gardenadm only."""
        return self.base / "zone"

    @property
    def last_applied(self) -> Path:
        """The last OperatingSystemConfig that was applied completely."""
        return self.base / "last-applied-osc.yaml"

    @property
    def pending_changes(self) -> Path:
        """The journal: what is left of the current OperatingSystemConfig."""
        return self.base / "last-computed-osc-changes.yaml"

    @property
    def desired(self) -> Path:
        """The last valid OperatingSystemConfig that was asked for, for operators' commands."""
        return self.base / "desired-osc.yaml"

    @property
    def originals(self) -> Path:
        """What was there before an OperatingSystemConfig replaced it, 0700."""
        return self.base / "originals"

    @property
    def generations(self) -> Path:
        """What last-applied and the configuration file held before, and digests of it, 0700."""
        return self.base / "generations"

    @property
    def extracted(self) -> Path:
        """Digests of the files that came out of images."""
        return self.base / "extracted-files.json"

    @property
    def runtime(self) -> Path:
        """Directory of what does not outlive a boot."""
        return self.root / "run/gardener-node-agent"

    @property
    def status(self) -> Path:
        """What the agent is doing, for operators' commands."""
        return self.runtime / "status.json"

    @property
    def failed_start(self) -> Path:
        """There if the last start ended with an error before it was complete."""
        return self.runtime / "failed-start"

    @property
    def unit_jobs(self) -> Path:
        """Jobs of units that have not ended, and units that were taken as started while they were still activating."""
        return self.runtime / "unit-jobs.json"

    @property
    def volume_scratch(self) -> Path:
        """Where the kubelet's data volume is mounted while it is being filled; root alone can place anything there."""
        return self.runtime / "kubelet-data-volume"

    @property
    def operating_system_update(self) -> Path:
        """The update of the operating system that this boot has seen."""
        return self.runtime / "os-update.json"

    @property
    def os_release(self) -> Path:
        """Which operating system this is."""
        return self.root / "etc/os-release"

    @property
    def restarts(self) -> Path:
        """When the agent restarted what on its own account, in this boot of the machine."""
        return self.runtime / "restarts.json"

    @property
    def requested_restarts(self) -> Path:
        """What was restarted for the annotation that is still on the Node."""
        return self.runtime / "requested-restarts.json"

    @property
    def own_program(self) -> Path:
        """The agent itself, as its unit starts it."""
        return self.root / "opt/bin/gardener-node-agent"

    @property
    def unpacked(self) -> tuple[Path, ...]:
        """Directories into which the one-file build unpacks itself: beside the program, else one of the others."""
        return tuple(folder / UNPACKED for folder in (self.own_program.parent, self.base, self.root / "run"))

    @property
    def reset_end(self) -> Path:
        """Says that a reset has only the agent's program left to remove."""
        return self.base / "reset-removes-program"

    @property
    def own_unit(self) -> Path:
        """Unit file of the agent."""
        return self.systemd / "gardener-node-agent.service"

    @property
    def systemd(self) -> Path:
        """Directory of units and drop-ins."""
        return self.root / "etc/systemd/system"

    @property
    def kubelet(self) -> Path:
        """The kubelet's directory, 0755."""
        return self.root / "var/lib/kubelet"

    @property
    def runtime_disks(self) -> tuple[Path, ...]:
        """Directories without whose file systems neither the kubelet nor containerd can work."""
        return (self.kubelet, self.root / "var/lib/containerd", self.root / "run")

    @property
    def kubelet_bootstrap_kubeconfig(self) -> Path:
        """What the kubelet bootstraps itself with."""
        return self.kubelet / "kubeconfig-bootstrap"

    @property
    def kubelet_kubeconfig(self) -> Path:
        """The kubelet's own kubeconfig; it exists once the kubelet has bootstrapped."""
        return self.kubelet / "kubeconfig-real"

    @property
    def kubelet_client_certificate(self) -> Path:
        """The kubelet's current client certificate."""
        return self.kubelet / "pki/kubelet-client-current.pem"

    @property
    def reserved(self) -> tuple[Path, ...]:
        """Files of the agent's own state that no OperatingSystemConfig may write; a directory stands for all below it."""
        return (
            self.credentials,
            self.temporary,
            self.originals,
            self.generations,
            self.extracted,
            self.last_applied,
            self.pending_changes,
            self.desired,
        )
