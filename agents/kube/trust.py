"""Which certificate authorities an API server is verified with, also while they are being rotated.

The bundle that a kubeconfig names (a file, or inline) says what is trusted, and during a rotation it holds the old and the new
authority. It can be wrong for a while: user data that runs again writes the bundle of the machine's first day, a power cut
empties the file, or the file already has the new authority alone while the API server still shows a certificate of the old
one. Therefore the bundle with which the API server was verified last is remembered, in memory and in a file of our own, and
compared with the one that is named now:

- the older of the two is left out. *Older* is the one whose newest certificate (by `notBefore`) is older than the newest of
  the other, unless it contains all of the other's certificates: that is one that was added to. With equal newest
  certificates the named bundle is the newer one: it has dropped what is no longer trusted.
- only if the API server cannot be verified with the newer one alone are both trusted together, on the next connections. As
  soon as the newer one alone suffices it is remembered, and the older one is forgotten for good.

So an older bundle never replaces a newer one, and a rotation whose halves arrive in any order cuts nobody off. What this costs:
until the first success with the new authority alone, whoever has the old one's key is still believed.

A bundle that is missing or does not parse counts as none if there is one to remember.
"""

import re
import ssl
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from agents.core import files
from agents.core.errors import AgentError
from agents.core.logging import get_logger
from agents.kube.kubeconfig import ClusterAccess, InvalidKubeconfig, reader

log = get_logger(__name__)

MODE = 0o600
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Authorities:
    """What one set of connections verifies the API server with."""

    pem: bytes
    newer: bytes
    """The newer bundle; all of `pem` unless both are trusted together."""

    @property
    def together(self) -> bool:
        """Whether an older bundle is trusted as well."""
        return self.pem != self.newer


class Trust:
    """Chooses authorities for one API server. `choose` and `keep` may block on the disk.

    Args:
        path: file of our own that outlives the process; None to remember nothing but in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._remembered: bytes | None = None
        self._loaded = path is None
        self._kept: bytes | None = None
        self._refused: bytes | None = None
        self._said = b""

    def choose(self, access: ClusterAccess) -> Authorities | None:
        """Return what to verify an API server with; None for the system's authorities, or none at all.

        Raises:
            InvalidKubeconfig: the bundle does not parse, and none is remembered (terminal).
            FileError: its file cannot be read, and none is remembered (retriable).
        """
        if access.insecure or (access.ca_file is None and not access.ca_data):
            return None
        remembered = self._load()
        try:
            named = _read(access)
        except AgentError as error:
            if remembered is None:
                raise
            if self._is_news("not usable", str(error).encode()):
                path = str(access.ca_file or "")
                log.error("CA bundle is not usable, using the one that worked before", path=path, error=error)
            return Authorities(remembered, remembered)
        if remembered is None or named == remembered:
            return Authorities(named, named)
        newer, older = named, remembered
        if is_older(named, than=remembered):
            newer, older = remembered, named
            if self._is_news("older", named):
                path = str(access.ca_file or "")
                log.error("CA bundle is older than the one that worked before and is not used", path=path)
        together = self._refused == newer
        return Authorities(newer + b"\n" + older if together else newer, newer)

    def verified(self, authorities: Authorities | None) -> None:
        """Note that the API server was verified; where both bundles were needed, one alone is tried again next time."""
        self._refused = None
        if authorities is not None and not authorities.together:
            self._remembered = authorities.newer

    def refused(self, authorities: Authorities | None) -> None:
        """Note that the API server could not be verified: what failed is not tried alone again next time."""
        self._refused = None if authorities is None else authorities.pem

    def keep(self) -> bool:
        """Write down what is remembered; returns whether anything was written.

        Raises:
            FileError: it could not be written.
        """
        remembered = self._remembered
        if self._path is None or remembered is None or remembered == self._kept:
            return False
        changed = files.write_atomic(self._path, remembered, mode=MODE)
        self._kept = remembered
        return changed

    def _load(self) -> bytes | None:
        if self._path is not None and not self._loaded:
            self._loaded = True
            try:
                content = files.read_optional(self._path)
                if content:
                    _certificates(content)
                    self._remembered = self._kept = content
            except AgentError as error:
                log.error("Remembered CA bundle is not usable", path=str(self._path), error=error)
        return self._remembered

    def _is_news(self, problem: str, what: bytes) -> bool:
        """Return whether this is another problem, or another content, than was said last."""
        digest = sha256(problem.encode() + what).digest()
        news, self._said = digest != self._said, digest
        return news


def is_older(bundle: bytes, *, than: bytes) -> bool:
    """Tell whether a CA bundle is older than another one; see the module for what that means. PEM.

    Raises:
        InvalidKubeconfig: one of them does not parse (terminal).
    """
    mine, other = _certificates(bundle), _certificates(than)
    if mine.keys() >= other.keys():
        return False
    return max(mine.values()) < max(other.values())


def _read(access: ClusterAccess) -> bytes:
    content: bytes | None = access.ca_data
    if access.ca_file is not None:
        content = reader(mounted=access.mounted)(access.ca_file)
        if content is None:
            raise files.FileError("CA file is missing", access.ca_file)
    _certificates(content or b"")
    return content or b""


def _certificates(pem: bytes) -> dict[bytes, float]:
    """Return the certificates of a bundle, DER, and since when each is valid; 0 for one that is no authority."""
    found: dict[bytes, float] = {}
    try:
        for block in _CERTIFICATE.findall(pem):
            text = block.decode("ascii")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(cadata=text)
            starts = [str(shown.get("notBefore", "")) for shown in context.get_ca_certs()]
            since = ssl.cert_time_to_seconds(starts[0]) if starts and starts[0] else 0
            found[ssl.PEM_cert_to_DER_cert(text)] = float(since)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidKubeconfig("CA certificates do not parse") from error
    if not found:
        raise InvalidKubeconfig("CA certificates do not parse")
    return found
