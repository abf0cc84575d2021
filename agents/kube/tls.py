"""A TLS context for a cluster, made from memory: no key ever lies in a temporary file.

OpenSSL's loader for client certificates wants file names. It gets one in `/proc/self/fd` that leads to an anonymous memory
file. What is verified equals what Go verifies: names by SAN only, any certificate of the CA bundle is an anchor, and the strict
X.509 flags that newer Pythons set are off, because certificates of existing clusters would not pass them.
"""

import ctypes
import os
import ssl

from agents.kube.kubeconfig import ClusterAccess, InvalidKubeconfig
from agents.kube.trust import Authorities, Trust

_MFD_CLOEXEC = 1


def tls_context(access: ClusterAccess, authorities: Authorities | None = None) -> ssl.SSLContext:
    """Return the context for a cluster; blocking, as it reads the CA file.

    Args:
        access: where, and as whom.
        authorities: what the server is verified with; by default what `access` names.

    Raises:
        InvalidKubeconfig: CA, certificate or key do not parse, or do not belong together (terminal).
        FileError: the CA file cannot be read (retriable).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        _trust(context, authorities or Trust().choose(access))
    credentials = access.credentials
    if credentials.client_certificate:
        load_client_certificate(context, credentials.client_certificate, credentials.client_key)
    return context


def load_client_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Give a context a client certificate chain and its key, both PEM.

    Raises:
        InvalidKubeconfig: they do not parse or do not belong together (terminal).
    """
    # By the C library: an interpreter that was built for an old one has no os.memfd_create.
    descriptor = ctypes.CDLL(None, use_errno=True).memfd_create(b"client-certificate", _MFD_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "no memory file for a client certificate")
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as memory:
            memory.write(certificate + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        raise InvalidKubeconfig("client certificate and key do not parse or do not match") from error
    finally:
        os.close(descriptor)


def _trust(context: ssl.SSLContext, authorities: Authorities | None) -> None:
    if authorities is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    try:
        context.load_verify_locations(cadata=authorities.pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise InvalidKubeconfig("CA certificates do not parse") from error
