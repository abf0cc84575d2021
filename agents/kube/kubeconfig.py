"""How to reach a cluster and as whom: read from a kubeconfig, written to one, or put together from parts.

The library's loaders are not used: they write inline keys to temporary files, read a token file once with its line feed, and
run the programs that a kubeconfig names. Accepted here is what contract 4.2 accepts: inline certificate and key, token, basic
auth, the CA inline or as a file; on request also a token file. Everything else that identifies a user is refused.
"""

import asyncio
import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agents.core import files
from agents.core.clock import Clock
from agents.core.errors import TerminalError
from agents.core.logging import get_logger
from agents.core.yamlio import YamlError, dump_json, load_yaml
from agents.kube.errors import Unauthorized

log = get_logger(__name__)

TOKEN_MAX_AGE_SECONDS = 60.0
"""A token file is read again when it was read longer ago than this; client-go's period."""

_REFUSED_USER_KEYS = frozenset(
    {"client-certificate", "client-key", "exec", "auth-provider", "as", "as-uid", "as-groups", "as-user-extra"}
)


class InvalidKubeconfig(TerminalError):
    """The kubeconfig is empty, torn, or contains what is refused; the fields say what, never with a value from it."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """As whom to talk to a cluster; all empty means anonymous. PEM for certificate and key, the leaf first."""

    client_certificate: bytes = b""
    client_key: bytes = field(default=b"", repr=False)
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    username: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Where a cluster is, how it proves to be the one, and as whom to talk to it."""

    server: str
    """URL of the API server; `https://` is added when there is no scheme."""
    ca_file: Path | None = None
    """File with the CA certificates; wins over `ca_data`."""
    ca_data: bytes = b""
    """CA certificates, PEM."""
    credentials: Credentials = Credentials()
    tls_server_name: str = ""
    proxy: str = ""
    insecure: bool = False
    """Do not verify the server; only ever true when a kubeconfig says so."""
    mounted: bool = False
    """Its files are in volumes of the Pod that we are: `files.read_mounted` reads them."""

    @property
    def url(self) -> str:
        """Return the server with a scheme and without a final slash."""
        server = self.server.rstrip("/")
        return server if "://" in server else f"https://{server}"


def parse(content: bytes, *, directory: Path | None = None, allow_token_file: bool = False) -> ClusterAccess:
    """Read a kubeconfig's current context.

    Args:
        content: YAML or JSON.
        directory: where relative file names start; they are refused without it.
        allow_token_file: accept `tokenFile`, as for a kubeconfig that an operator configured.

    Raises:
        InvalidKubeconfig: it cannot be used (terminal).
    """
    try:
        document = load_yaml(content)
    except YamlError as error:
        raise InvalidKubeconfig("kubeconfig is not valid YAML", **error.fields) from error
    if not isinstance(document, dict) or not document:
        raise InvalidKubeconfig("kubeconfig is empty")
    name = _text(document, "current-context")
    if not name:
        raise InvalidKubeconfig("kubeconfig has no current context")
    context = _entry(document, "contexts", "context", name)
    cluster = _entry(document, "clusters", "cluster", _text(context, "cluster"))
    user = _entry(document, "users", "user", _text(context, "user"))
    server = _text(cluster, "server")
    if not server:
        raise InvalidKubeconfig("kubeconfig has no server")
    ca_file = _file(cluster, "certificate-authority", directory)
    return ClusterAccess(
        server=server,
        ca_file=ca_file,
        ca_data=_pem(cluster, "certificate-authority-data") if ca_file is None else b"",
        credentials=_credentials(user, directory, allow_token_file=allow_token_file),
        tls_server_name=_text(cluster, "tls-server-name"),
        proxy=_text(cluster, "proxy-url"),
        insecure=cluster.get("insecure-skip-tls-verify") is True,
    )


async def load(path: Path, *, allow_token_file: bool = False, mounted: bool = False) -> ClusterAccess | None:
    """Read a kubeconfig file, None if there is none.

    Args:
        path: of the file.
        allow_token_file: as for `parse`.
        mounted: whether it, and what it names, may be in volumes of the Pod that we are.

    Raises:
        InvalidKubeconfig: it cannot be used (terminal).
    """
    content = await asyncio.to_thread(reader(mounted=mounted), path)
    if content is None:
        return None
    return replace(parse(content, directory=path.parent, allow_token_file=allow_token_file), mounted=mounted)


def reader(*, mounted: bool) -> Callable[[Path], bytes | None]:
    """Return what reads the files of a `ClusterAccess`."""
    return files.read_mounted if mounted else files.read_optional


def render(access: ClusterAccess, *, name: str = "node-agent") -> bytes:
    """Write a kubeconfig with one cluster, one user and one context, all of the same name (contract 4.4).

    The CA is the file if there is one, else the inline data, never both.
    """
    cluster: dict[str, object] = {"server": access.url}
    if access.ca_file is not None:
        cluster["certificate-authority"] = str(access.ca_file)
    elif access.ca_data:
        cluster["certificate-authority-data"] = b64encode(access.ca_data).decode()
    if access.tls_server_name:
        cluster["tls-server-name"] = access.tls_server_name
    if access.proxy:
        cluster["proxy-url"] = access.proxy
    if access.insecure:
        cluster["insecure-skip-tls-verify"] = True
    return dump_json(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": _user(access.credentials)}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
    )


class TokenFile:
    """A bearer token that somebody else replaces in its file.

    Read again when it was read more than a minute ago, and after the API server refused it. While the file cannot be read,
    the token that was read last is used on.
    """

    def __init__(self, path: Path, *, clock: Clock, mounted: bool = False) -> None:
        self._path = path
        self._clock = clock
        self._reader = reader(mounted=mounted)
        self._token = ""
        self._read_at: float | None = None

    async def get(self) -> str:
        """Return the token.

        Raises:
            Unauthorized: the file is missing or empty and there is no earlier token (retriable).
        """
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at > TOKEN_MAX_AGE_SECONDS:
            await self._read()
            self._read_at = now
        return self._token

    def expire(self) -> None:
        """Have the file read again before the next request."""
        self._read_at = None

    async def _read(self) -> None:
        cause: OSError | files.FileError | None = None
        token = ""
        try:
            token = (await asyncio.to_thread(self._reader, self._path) or b"").decode(errors="replace").strip()
        except (OSError, files.FileError) as error:
            cause = error
        if token:
            self._token = token
        elif self._token:
            log.debug("Token file not readable, using the token read before", path=str(self._path))
        else:
            raise Unauthorized("token file is missing or empty", path=str(self._path)) from cause


def _user(credentials: Credentials) -> dict[str, object]:
    user: dict[str, object] = {}
    if credentials.client_certificate:
        user["client-certificate-data"] = b64encode(credentials.client_certificate).decode()
    if credentials.client_key:
        user["client-key-data"] = b64encode(credentials.client_key).decode()
    if credentials.token:
        user["token"] = credentials.token
    if credentials.token_file is not None:
        user["tokenFile"] = str(credentials.token_file)
    if credentials.username:
        user["username"] = credentials.username
        user["password"] = credentials.password
    return user


def _credentials(user: Mapping[str, object], directory: Path | None, *, allow_token_file: bool) -> Credentials:
    refused = sorted(key for key in user if key in _REFUSED_USER_KEYS and user[key])
    if not allow_token_file and user.get("tokenFile"):
        refused.append("tokenFile")
    if refused:
        raise InvalidKubeconfig("kubeconfig has user fields that are refused", keys=refused)
    certificate, key = _pem(user, "client-certificate-data"), _pem(user, "client-key-data")
    if bool(certificate) != bool(key):
        raise InvalidKubeconfig("kubeconfig has a client certificate without its key, or the reverse")
    token_file = _file(user, "tokenFile", directory)
    return Credentials(
        client_certificate=certificate,
        client_key=key,
        token="" if token_file is not None else _text(user, "token"),
        token_file=token_file,
        username=_text(user, "username"),
        password=_text(user, "password"),
    )


def _entry(document: Mapping[str, object], section: str, key: str, name: str) -> Mapping[str, object]:
    entries = document.get(section)
    if isinstance(entries, Sequence):
        for entry in entries:
            if isinstance(entry, dict) and entry.get("name") == name:
                value = entry.get(key)
                return value if isinstance(value, dict) else {}
    raise InvalidKubeconfig("kubeconfig lacks an entry that it refers to", section=section)


def _text(document: Mapping[str, object], key: str) -> str:
    value = document.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidKubeconfig("kubeconfig field is not a string", key=key)
    return value


def _pem(document: Mapping[str, object], key: str) -> bytes:
    text = _text(document, key)
    try:
        content = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidKubeconfig("kubeconfig field is not base64", key=key) from error
    if text and b"-----BEGIN " not in content:
        raise InvalidKubeconfig("kubeconfig field is not PEM", key=key)
    return content


def _file(document: Mapping[str, object], key: str, directory: Path | None) -> Path | None:
    text = _text(document, key)
    if not text:
        return None
    path = Path(text)
    if path.is_absolute():
        return path
    if directory is None:
        raise InvalidKubeconfig("kubeconfig refers to a file by a relative path", key=key)
    return directory / path
