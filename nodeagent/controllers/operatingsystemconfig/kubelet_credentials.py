"""A kubelet that has to bootstrap itself anew, because certificate authorities are rotated.

Its kubeconfig and certificates are moved aside, not deleted, and come back if the new bootstrap does not work; what was
begun shows on the disk, so a kill at any line is harmless (W30). Source: gardener
pkg/nodeagent/controller/operatingsystemconfig/reconciler.go, rebootstrapKubelet (contract 6.13, step 6).
"""

import base64
import os
from collections.abc import Mapping
from pathlib import Path

from agents.core import files, trees
from agents.core.errors import RetriableError
from agents.core.logging import get_logger
from agents.core.yamlio import YamlError, dump_json, load_yaml
from nodeagent.paths import Paths

log = get_logger(__name__)

_MODE = 0o600


class NoKubeletCredentials(RetriableError):
    """There is nothing with which the kubelet could bootstrap itself; it keeps what it has."""


class KubeletCredentials:
    """Files below the kubelet's directory; every method may block on the disk.

    Args:
        paths: where they are.
        server: URL of the API server.
        ca_file: its CA, on the machine.
    """

    def __init__(self, *, paths: Paths, server: str, ca_file: str) -> None:
        self._paths = paths
        self._server = server
        self._ca_file = ca_file

    @property
    def _aside(self) -> Path:
        return self._paths.kubelet / ".before-rotation"

    @property
    def _complete(self) -> Path:
        """There once everything was moved: what stands in the old places from then on is the kubelet's new work.

        Its content tells for which rotation, so that what a kill left of an earlier one is not taken for this one's.
        """
        return self._aside / "complete"

    @property
    def _pki(self) -> Path:
        return self._paths.kubelet_client_certificate.parent

    def set_aside(self, rotation: str) -> bool:
        """Prepare a new bootstrap; returns whether anything had to be done.

        Args:
            rotation: what tells this one from others.

        Raises:
            NoKubeletCredentials: the kubelet would be left with nothing.
            FileError: nothing was moved, or the rest is moved by the next call.
        """
        known = files.read_optional(self._complete)
        if known == rotation.encode():
            return False
        if known is not None and self._kubelet_has_any():
            self.discard()
        elif known is not None:
            # An earlier rotation was never finished; what it set aside is still all that could be brought back.
            files.write_atomic(self._complete, rotation.encode(), mode=_MODE)
            return True
        self._write_bootstrap_kubeconfig()
        if files.read_optional(self._paths.kubelet_bootstrap_kubeconfig) is None:
            raise NoKubeletCredentials(
                "kubelet cannot bootstrap itself anew: there is neither its kubeconfig nor one to bootstrap with",
                path=str(self._paths.kubelet_bootstrap_kubeconfig),
            )
        files.ensure_directory(self._aside, mode=0o700)
        # The kubeconfig first: without it a second attempt does not look for the certificate that is already gone.
        for path in (self._paths.kubelet_kubeconfig, self._pki):
            self._move(path, self._aside / path.name)
        files.write_atomic(self._complete, rotation.encode(), mode=_MODE)
        return True

    def renewed(self) -> bool:
        """Tell whether the kubelet has a kubeconfig and a client certificate other than those set aside."""
        certificate = self._paths.kubelet_client_certificate
        return self._kubelet_has_any() and _read(certificate) != _read(self._aside / "pki" / certificate.name)

    def _kubelet_has_any(self) -> bool:
        return self._paths.kubelet_kubeconfig.exists() and bool(_read(self._paths.kubelet_client_certificate))

    def discard(self) -> None:
        """Remove what was set aside: the credentials that are in use work.

        Raises:
            FileError: some of it is left.
        """
        files.remove(self._complete)  # first: it says that the rest is whole
        trees.remove(self._aside)

    def tidy(self) -> None:
        """Remove what a kill left of a rotation that has ended: keys that nobody needs any more.

        Raises:
            FileError: some of it is left.
        """
        if self._kubelet_has_any():
            self.discard()

    def restore(self) -> bool:
        """Bring back what was set aside; returns whether there was anything."""
        if not self._aside.is_dir():
            return False
        for path in (self._pki, self._paths.kubelet_kubeconfig):
            if (self._aside / path.name).exists():
                self._move(self._aside / path.name, path)
        self.discard()
        return True

    def _write_bootstrap_kubeconfig(self) -> None:
        """Write what the kubelet bootstraps with: its old identity, the API server and CA as they are now."""
        content = files.read_optional(self._paths.kubelet_kubeconfig)
        if content is None:
            return
        certificate = _read(self._paths.kubelet_client_certificate)
        if not certificate:
            raise NoKubeletCredentials(
                "kubelet's client certificate is missing, its kubeconfig would have empty credentials",
                path=str(self._paths.kubelet_client_certificate),
            )
        try:
            document = load_yaml(content)
        except YamlError as error:
            raise NoKubeletCredentials("kubelet's kubeconfig is not readable") from error
        if not isinstance(document, Mapping):
            raise NoKubeletCredentials("kubelet's kubeconfig is not readable")
        data = base64.b64encode(certificate).decode()
        wanted = {
            **document,
            "clusters": [
                {
                    "name": "default-cluster",
                    "cluster": {"server": self._server, "certificate-authority": self._ca_file},
                }
            ],
            "users": [{"name": "default-auth", "user": {"client-certificate-data": data, "client-key-data": data}}],
        }
        files.write_atomic(self._paths.kubelet_bootstrap_kubeconfig, dump_json(wanted), mode=_MODE)

    def _move(self, source: Path, target: Path) -> None:
        if not os.path.lexists(source):
            return
        try:
            trees.remove(target)
            source.rename(target)
            for directory in {source.parent, target.parent}:
                _sync(directory)
        except OSError as error:
            raise files.FileError("credentials of the kubelet not moved", source, error) from error


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path) -> bytes:
    try:
        # The kubelet keeps its current certificate behind a link.
        return files.read_mounted(path) or b""
    except files.FileError:
        return b""
