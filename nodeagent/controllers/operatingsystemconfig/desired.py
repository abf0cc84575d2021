"""From the OSC Secret to what this host is to look like, checked before anything is touched."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from agents.kube.models import Secret
from nodeagent.controllers.operatingsystemconfig.trigger import SERIAL_ANNOTATION, is_serial
from nodeagent.paths import Paths
from osc import codec
from osc.codec import Checksum, Decoded
from osc.errors import InvalidOSC, Problem
from osc.merge import Effective, effective
from osc.validation import validate


@dataclass(frozen=True, slots=True)
class Desired:
    """One version of the OSC."""

    checksum: str
    decoded: Decoded = field(repr=False)
    effective: Effective = field(repr=False)


def checksum(secret: Secret) -> Checksum:
    """Return the checksum to be reported for a Secret; cheap, nothing is decoded.

    Raises:
        InvalidOSC: the Secret holds no OSC.
    """
    return codec.checksum(secret.metadata.annotations, codec.payload(secret.data))


def read(secret: Secret, *, hostname: str, paths: Paths) -> Desired:
    """Decode and validate.

    Raises:
        InvalidOSC: with every problem and its path.
    """
    decoded = codec.decode(codec.payload(secret.data))
    problems = [*_serial(secret), *validate(decoded.config, own_state=[str(paths.desired)])]
    if problems:
        raise InvalidOSC(problems)
    return Desired(checksum(secret).value, decoded, effective(decoded.config, hostname=hostname))


def _serial(secret: Secret) -> Sequence[Problem]:
    if not is_serial(secret):
        return ()
    return (Problem(f"metadata.annotations[{SERIAL_ANNOTATION}]", "needs a part of the agent that is not built yet"),)
