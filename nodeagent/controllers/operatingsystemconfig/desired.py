"""From the OSC Secret to what this host is to look like, checked before anything is touched."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agents.kube.models import Secret
from nodeagent.controllers.operatingsystemconfig import staticpods
from nodeagent.paths import Paths
from osc import codec
from osc.codec import Checksum, Decoded
from osc.containerd import with_environment
from osc.errors import InvalidOSC
from osc.merge import Effective, effective
from osc.validation import validate


@dataclass(frozen=True, slots=True)
class Desired:
    """One version of the OSC.

    Attributes:
        checksum: what is reported once it is applied.
        decoded: with what the agent adds to it; this is what is remembered as applied.
        effective: files and units of this host, settings of containerd.
        static_pods: what identifies the version of each static pod, by the pod's name.
    """

    checksum: str
    decoded: Decoded = field(repr=False)
    effective: Effective = field(repr=False)
    static_pods: Mapping[str, str] = field(default_factory=dict)


def checksum(secret: Secret) -> Checksum:
    """Return the checksum to be reported for a Secret; cheap, nothing is decoded.

    Raises:
        InvalidOSC: the Secret holds no OSC.
    """
    return codec.checksum(secret.metadata.annotations, codec.payload(secret.data))


def read(secret: Secret, *, hostname: str, paths: Paths, search_path: str) -> Desired:
    """Decode and validate.

    Args:
        secret: the OSC Secret.
        hostname: ours; files of other hosts are left out.
        paths: the agent's own files, which no OSC may write.
        search_path: the agent's PATH, for containerd's drop-in.

    Raises:
        InvalidOSC: with every problem and its path.
    """
    decoded = with_environment(codec.decode(codec.payload(secret.data)), search_path)
    return check(decoded, checksum=checksum(secret).value, hostname=hostname, paths=paths)


def check(decoded: Decoded, *, checksum: str, hostname: str, paths: Paths) -> Desired:
    """Validate what was decoded; arguments and errors as in `read`."""
    problems = validate(decoded.config, own_state=[str(paths.desired)])
    if problems:
        raise InvalidOSC(problems)
    wanted = effective(decoded.config, hostname=hostname)
    return Desired(checksum, decoded, wanted, staticpods.desired(wanted))
