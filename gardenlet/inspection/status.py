"""`status`: what the gardenlet on this machine says about itself on its ports."""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from pydantic import Field

from agents.core.config import ConfigError, parse_config, read_mapping
from agents.core.errors import RetriableError
from agents.inspection.document import document
from agents.inspection.output import Colour, Style, printable
from gardenlet.config import Endpoint, GardenletConfiguration

DEADLINE_SECONDS = 10.0
"""Of each answer; the checks themselves have 5 s."""

State = Literal["beating", "following", "starting", "failing", "not running"]
_COLOURS: Mapping[State, Colour] = {
    "beating": "green",
    "following": "green",
    "starting": "yellow",
    "failing": "red",
    "not running": "red",
}
_EXIT_CODES: Mapping[State, int] = {"beating": 0, "following": 0, "starting": 2, "failing": 1, "not running": 1}
_STARTUP = "startup"
_CHECK = re.compile(r"\[([+-])\](\S+) (ok|excluded: ok|failed: (.*))")
_NOTE = re.compile(r"\[i\]([^:]+): (.*)")
_LEASE = "gardenlet_heartbeat_last_success_timestamp_seconds"
_EXPIRES = "gardenlet_client_certificate_expiration_timestamp_seconds"
_BUILD = "gardenlet_build_info"


class NotAnswered(RetriableError):
    """Nobody answers on a port."""


@document
class Check:
    """One check of a health endpoint."""

    endpoint: Annotated[str, Field(description="healthz or readyz.")]
    name: Annotated[str, Field(description="Of the check.")]
    passed: Annotated[bool, Field(description="Whether it passes.")]
    reason: Annotated[str, Field(description="Why it fails; empty if it does not.")] = ""


@document
class Status:
    """What a gardenlet is doing."""

    state: Annotated[State, Field(description="In one word.")]
    problem: Annotated[str, Field(description="Why nothing more is known; empty if it answers.")] = ""
    version: Annotated[str, Field(description="Of what runs, which may be another one than this program's.")] = ""
    checks: tuple[Check, ...] = ()
    notes: Annotated[Mapping[str, str], Field(description="What the health endpoint says besides, by name.")] = field(
        default_factory=dict
    )
    heartbeat_age_seconds: Annotated[
        float | None, Field(description="Since the Seed's Lease was renewed; null if it never was, as with a follower.")
    ] = None
    certificate_expires: Annotated[
        datetime | None, Field(description="When the certificate for the garden expires; null if that is not known.")
    ] = None


def ports(config: Path) -> tuple[str, str, str]:
    """Return the URLs of health and metrics, and why the configuration could not be used; the default ports then."""
    try:
        server = parse_config(config, read_mapping(config), GardenletConfiguration).server
        problem = ""
    except ConfigError as error:
        server, problem = GardenletConfiguration().server, str(error)
    return _url(server.health_probes), _url(server.metrics), problem


def _url(listener: Endpoint) -> str:
    address = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(  # noqa: S104 - what it listens on, not we
        listener.bind_address, listener.bind_address
    )
    return f"http://{address}:{listener.port}"


async def gather(health: str, metrics: str, *, now: datetime) -> Status:
    """Ask the gardenlet that listens there."""
    timeout = aiohttp.ClientTimeout(total=DEADLINE_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        try:
            live, ready = await asyncio.gather(  # noqa: TID251 - two questions of one short command
                _get(session, f"{health}/healthz?verbose"), _get(session, f"{health}/readyz?verbose")
            )
        except NotAnswered as error:
            return Status(state="not running", problem=str(error))
        try:
            counted = await _get(session, f"{metrics}/metrics")
        except NotAnswered:
            counted = ""
    return read(live, ready, counted, now=now)


def read(live: str, ready: str, metrics: str, *, now: datetime) -> Status:
    """Return what the answers of `/healthz?verbose`, `/readyz?verbose` and `/metrics` say; no metrics if they are empty."""
    values = _values(metrics)
    checks = (*_checks("healthz", live), *_checks("readyz", ready))
    renewed, expires = values.get(_LEASE) or None, values.get(_EXPIRES)
    return Status(
        state=_state(checks, beats=renewed is not None),
        version=_version(values),
        checks=checks,
        notes={match[1]: match[2] for line in live.splitlines() if (match := _NOTE.fullmatch(line))},
        heartbeat_age_seconds=None if renewed is None else round(max(0.0, now.timestamp() - renewed), 1),
        certificate_expires=None if expires is None else datetime.fromtimestamp(expires, UTC),
    )


def exit_code(found: Status) -> int:
    """Return the exit code."""
    return _EXIT_CODES[found.state]


def lines(found: Status, style: Style) -> Iterator[str]:
    """Yield the text."""
    version = f", {found.version}" if found.version else ""
    yield f"gardenlet: {style(found.state, _COLOURS[found.state])}{version}"
    if found.problem:
        yield f"  {printable(found.problem)}"
        return
    for check in found.checks:
        mark = style("ok", "green") if check.passed else style(f"fails: {printable(check.reason)}", "red")
        yield f"  {check.endpoint:<8} {check.name:<24} {mark}"
    for name, text in found.notes.items():
        yield f"  {'':<8} {name:<24} {printable(text)}"
    age = "never" if found.heartbeat_age_seconds is None else f"{found.heartbeat_age_seconds:.1f} s ago"
    yield f"  Lease of the Seed renewed: {age}"
    if found.certificate_expires is not None:
        yield f"  certificate for the garden expires: {found.certificate_expires:%Y-%m-%d %H:%M} UTC"


def _state(checks: Iterable[Check], *, beats: bool) -> State:
    failed = {check.name for check in checks if not check.passed}
    if failed - {_STARTUP}:
        return "failing"
    if failed:
        return "starting"
    return "beating" if beats else "following"


def _checks(endpoint: str, text: str) -> Iterator[Check]:
    for line in text.splitlines():
        if match := _CHECK.fullmatch(line):
            yield Check(endpoint=endpoint, name=match[2], passed=match[1] == "+", reason=match[4] or "")


def _values(text: str) -> dict[str, float]:
    """Return the metrics without labels, and the build's with its version in the name."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {
        f"{sample.name}/{sample.labels['version']}" if sample.name == _BUILD else sample.name: sample.value
        for sample in samples
        if not sample.labels or sample.name == _BUILD
    }


def _version(values: Mapping[str, float]) -> str:
    return next((name.partition("/")[2] for name in values if name.startswith(f"{_BUILD}/")), "")


async def _get(session: aiohttp.ClientSession, url: str) -> str:
    try:
        async with session.get(url, allow_redirects=False) as answer:
            return await answer.text()
    except TimeoutError as error:
        raise NotAnswered("gardenlet does not answer in time", url=url) from error
    except (aiohttp.ClientError, OSError) as error:
        raise NotAnswered("nobody answers", url=url, problem=type(error).__name__) from error
