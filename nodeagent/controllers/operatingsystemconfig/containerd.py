"""containerd's configuration file, and the `hosts.toml` files of its registries.

The file is written only if what it says differs from what the OSC asks for, so a restart of containerd follows from a real
difference and never from a guess (W16). Source: gardener
pkg/nodeagent/controller/operatingsystemconfig/containerd_config.go and containerd.go (contract 6.14, 6.15).
"""

import asyncio
import ssl
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

import aiohttp

from agents.core import comparing, files, trees
from agents.core.errors import RetriableError, TerminalError
from agents.core.logging import get_logger
from agents.core.names import Names
from agents.core.threads import run_to_end
from nodeagent.host.originals import Originals
from osc.containerd import (
    CERTS_DIRECTORY,
    CONFIG_FILE,
    HOSTS_FILE,
    IMPORTS_DIRECTORY,
    RUNTIMES_DIRECTORY,
    UnusableConfig,
    hosts_file,
    hosts_toml,
    patched,
    same,
)
from osc.merge import Runtime
from osc.types import Registry, RegistryHost

log = get_logger(__name__)

CONFIG_MODE = 0o644
MOST_CONFIG_BYTES = 1024 * 1024
"""Of containerd's configuration: the default one has a few KiB, and it is parsed as a whole."""
PROBE_SECONDS = 1.0
"""How long one host of a registry may take to answer a probe."""


class Containerd(Protocol):
    """What is asked of containerd itself."""

    async def version(self) -> str:
        """Return the version of the running containerd."""
        ...

    async def default_config(self) -> bytes:
        """Return the configuration file that containerd would use if there were none."""
        ...


class BrokenConfig(TerminalError):
    """containerd's configuration file is no TOML, or has another form; whoever wrote it has to mend it."""


class RegistryNotReady(RetriableError):
    """A host of a registry does not answer yet."""


class ContainerdFiles:
    """Writes below `/etc/containerd`.

    Args:
        containerd: asked for its version, and for the configuration to start from.
        originals: keeps the configuration as it was before us, and what was in folders of registries.
        root: where the machine's file system starts.
        names: looks up the hosts of registries.
    """

    def __init__(self, *, containerd: Containerd, originals: Originals, root: Path, names: Names | None = None) -> None:
        self._containerd = containerd
        self._originals = originals
        self._root = root
        self._names = names or Names()

    async def differs(self, settings: Runtime) -> bool:
        """Tell whether `configure` would change the file.

        Raises:
            AgentError: containerd cannot be asked, or its file cannot be used.
        """
        before, after = await self.tables(settings)
        return not same(before, after)

    async def configure(self, settings: Runtime, *, changes: Callable[[], None] = lambda: None) -> bool:
        """Make the file say what the OSC asks for; the directories that it refers to exist then.

        Args:
            settings: what the OSC asks for.
            changes: called right before the file is written.

        Returns:
            Whether it was written.

        Raises:
            AgentError: as `differs`, or the file cannot be written.
        """
        before, after = await self.tables(settings)
        for directory in (RUNTIMES_DIRECTORY, IMPORTS_DIRECTORY, CERTS_DIRECTORY):
            await run_to_end(files.ensure_directory, self._at(directory))
        if same(before, after):
            return False
        content = _rendered(after)
        await run_to_end(self._originals.keep_first, CONFIG_FILE)
        changes()
        await run_to_end(files.write_atomic, self._at(CONFIG_FILE), content, mode=CONFIG_MODE)
        log.info("Configuration of containerd written", path=CONFIG_FILE)
        return True

    async def tables(self, settings: Runtime) -> tuple[Mapping[str, object] | None, Mapping[str, object]]:
        """Return what the file says, None if there is none, and what it should say; errors as `differs`."""
        content = await asyncio.to_thread(files.read_optional, self._at(CONFIG_FILE), limit=MOST_CONFIG_BYTES)
        missing = content is None
        config = _parse(await self._containerd.default_config() if content is None else content)
        version = await self._containerd.version()
        try:
            wanted = patched(config, settings, version)
        except (UnusableConfig, RecursionError) as error:
            raise _unusable(error) from error
        return None if missing else config, wanted

    def write_registry(self, registry: Registry) -> bool:
        """Write a registry's `hosts.toml`; blocking. Returns whether it changed."""
        path = self._directory(registry.upstream) / HOSTS_FILE
        changed = files.write_atomic(path, hosts_toml(registry).encode(), mode=CONFIG_MODE)
        if changed:
            log.info("Registry configured", upstream=registry.upstream)
        return changed

    def has_registry(self, registry: Registry) -> bool:
        """Tell whether a registry's `hosts.toml` is as it should be; blocking."""
        try:
            return bool(comparing.holds(self._directory(registry.upstream) / HOSTS_FILE, hosts_toml(registry).encode()))
        except files.FileError:
            return False

    def remove_registry(self, upstream: str, *, keep: Collection[str] = ()) -> None:
        """Remove a registry's whole directory; missing is fine; blocking.

        One that was there before us stays, with all that is in it, and its `hosts.toml` is as it was then. So does one with files to
        `keep`, but for a `hosts.toml` that is none of them.

        Raises:
            FileError: it cannot be removed.
        """
        directory = self._directory(upstream)
        if hosts_file(upstream) in keep:
            removed = False
        elif keep or self._originals.may_have_folder(hosts_file(upstream)):
            removed = self._originals.take_back(directory / HOSTS_FILE)
        else:
            removed = trees.remove(directory)
        if removed:
            log.info("Registry removed", upstream=upstream)

    async def probe(self, registry: Registry) -> None:
        """Ask every host of a registry for anything; whatever it answers is fine.

        Raises:
            RegistryNotReady: one does not answer; all others were asked too.
        """
        async with asyncio.TaskGroup() as group:
            asked = {host.url: group.create_task(self._ask(registry, host)) for host in registry.hosts}
        silent = {url: cause for url, task in asked.items() if (cause := task.result())}
        if silent:
            causes = "; ".join(f"{url}: {cause}" for url, cause in silent.items())
            raise RegistryNotReady("registry is not ready", upstream=registry.upstream, causes=causes)

    async def _ask(self, registry: Registry, host: RegistryHost) -> str:
        """Return why a host does not answer, empty if it does. Each has a connection and CAs of its own (W34)."""
        try:
            context = await asyncio.to_thread(self._tls, registry.upstream, host)
            timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
            connector = aiohttp.TCPConnector(ssl=context, resolver=self._names)
            async with (
                aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
                session.get(host.url, allow_redirects=False),
            ):
                return ""
        except TimeoutError:
            return f"no answer within {PROBE_SECONDS:g} s"
        except (aiohttp.ClientError, OSError, ssl.SSLError, ValueError) as error:
            return str(error)[:200] or type(error).__name__

    def _tls(self, upstream: str, host: RegistryHost) -> ssl.SSLContext:
        """Trust only the CAs that are named, or the machine's; relative paths are below the upstream's directory."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if not host.ca_certs:
            context.load_default_certs()
        for path in host.ca_certs:
            absolute = path if path.startswith("/") else f"{CERTS_DIRECTORY}/{upstream}/{path}"
            context.load_verify_locations(cafile=self._at(absolute))
        return context

    def _directory(self, upstream: str) -> Path:
        return self._at(f"{CERTS_DIRECTORY}/{upstream}")

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")


def _parse(content: bytes) -> dict[str, object]:
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # also plain ones, of an integer with too many digits
        raise BrokenConfig(
            "configuration of containerd is not valid TOML", path=CONFIG_FILE, problem=str(error)[:200]
        ) from None


def _rendered(table: Mapping[str, object]) -> bytes:
    import tomli_w  # rarely needed: only where containerd's configuration really changes

    try:
        return tomli_w.dumps(table).encode()
    except (ValueError, RecursionError) as error:
        # Reading takes deeper tables than writing, and longer integers.
        raise _unusable(error) from None


def _unusable(error: Exception) -> BrokenConfig:
    return BrokenConfig("configuration of containerd cannot be used", path=CONFIG_FILE, problem=str(error)[:200])
