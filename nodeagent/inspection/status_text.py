"""`status` for people."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from agents.inspection.output import Colour, Style, printable
from nodeagent.inspection.status import Config, Failing, Health, Outcome, Status, describe_left

_COLOURS: Mapping[Outcome, Colour] = {"done": "green", "failed": "red", "inProgress": "yellow", "degraded": "yellow"}
_WORDS: Mapping[Outcome, str] = {"inProgress": "in progress"}
_MOST_LINES = 10
_WIDTH = 13


def lines(found: Status, style: Style) -> Iterator[str]:
    """Yield the text."""
    yield f"{style(_WORDS.get(found.outcome, found.outcome), _COLOURS[found.outcome])}"
    yield from (f"  {printable(reason)}" for reason in found.reasons)
    yield ""
    yield _row("agent", _agent(found))
    yield _row("secret", f"kube-system/{found.secret_name}" if found.secret_name else "unknown")
    yield _row("desired", _config(found.desired, found.observed_at, "seen"))
    yield _row("applied", _config(found.applied, found.observed_at, "applied"))
    yield _row("heartbeat", _heartbeat(found))
    yield _row("certificate", _certificate(found))
    yield _row("containerd", _health(found.containerd, style))
    yield _row("kubelet", _health(found.kubelet, style))
    yield _row("drift", _drift(found))
    yield from (f"  {printable(item.message)}" for item in found.drift.items[:_MOST_LINES])
    yield from _more(len(found.drift.items))
    if found.failing:
        yield ""
        yield style("failing or waited for", "bold")
        for item in found.failing[:_MOST_LINES]:
            yield from _failing(item, found.observed_at, style)
        yield from _more(len(found.failing))
    if found.left:
        yield ""
        yield style("left to do", "bold")
        yield from (f"  {describe_left(left)}" for left in found.left[:_MOST_LINES])
        yield from _more(len(found.left))


def summary(found: Status) -> str:
    """Return one line, for following."""
    reason = f": {found.reasons[0]}" if found.reasons else ""
    return printable(f"{_WORDS.get(found.outcome, found.outcome)}{reason}")


def duration(seconds: float) -> str:
    """Return a duration for people, in its two largest units."""
    whole = round(seconds)
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    first = next((index for index, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return "".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count) or "0s"


def _row(name: str, value: str) -> str:
    return f"{name:<{_WIDTH}}{value}"


def _more(count: int) -> Iterator[str]:
    if count > _MOST_LINES:
        yield f"  and {count - _MOST_LINES} more"


def _ago(moment: datetime, now: datetime) -> str:
    return f"{duration(max(0.0, (now - moment).total_seconds()))} ago"


def _agent(found: Status) -> str:
    agent = found.agent
    text = agent.state
    if agent.since is not None:
        text += f" for {duration(max(0.0, (found.observed_at - agent.since).total_seconds()))}"
    text += f", {agent.phase}" if agent.phase != "unknown" else ", phase unknown"
    if agent.gardener_version:
        text += f", speaks {agent.gardener_version}"
    return text


def _config(config: Config | None, now: datetime, verb: str) -> str:
    if config is None:
        return "none"
    name = f"checksum {config.checksum[:12]}" if config.checksum else f"checksum unknown, file {config.digest[:12]}"
    origin = f", {config.origin}" if config.origin not in (None, "ours") else ""
    return f"{name}, {verb} {_ago(config.at, now)}{origin}"


def _heartbeat(found: Status) -> str:
    beat = found.heartbeat
    if beat.age_seconds is None:
        return f"unknown: {beat.problem}"
    source = "" if beat.source == "agent" else f", by what the agent wrote down ({beat.problem})"
    return f"{duration(beat.age_seconds)} ago{source}"


def _certificate(found: Status) -> str:
    certificate = found.certificate
    if certificate.expires is None:
        return f"unknown: {certificate.problem}" if certificate.problem else "none: another kubeconfig is configured"
    left = (certificate.expires - found.observed_at) / timedelta(seconds=1)
    when = f"expired {duration(-left)} ago" if certificate.expired else f"valid for {duration(left)}"
    return f"{when}, until {certificate.expires:%Y-%m-%dT%H:%M:%SZ}"


def _health(health: Health, style: Style) -> str:
    if health.healthy:
        return f"{style('healthy', 'green')}, {health.detail}" if health.detail != "ok" else style("healthy", "green")
    return f"{style('not healthy', 'red')}: {health.detail}"


def _drift(found: Status) -> str:
    if not found.drift.known:
        return f"unknown: {found.drift.problem}"
    count = len(found.drift.items)
    return "none" if not count else f"{count} item{'s' if count > 1 else ''} differ{'' if count > 1 else 's'}"


def _failing(item: Failing, now: datetime, style: Style) -> Iterator[str]:
    yield f"  {style(printable(item.item), 'red')}: {printable(item.cause) or 'held back by another item'}"
    again = "" if item.next_try is None else f", next try {_until(item.next_try, now)}"
    yield f"    since {_ago(item.since, now)}, attempt {item.attempt}{again}"


def _until(moment: datetime, now: datetime) -> str:
    left = (moment - now).total_seconds()
    return f"in {duration(left)}" if left > 0 else "is due"
