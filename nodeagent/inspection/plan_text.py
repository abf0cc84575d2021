"""`plan` for people."""

from collections.abc import Iterator, Mapping

from agents.inspection.output import Colour, Style, printable
from nodeagent.inspection.content import Content
from nodeagent.inspection.plan import Disruption, Item, Plan

_WORDS: Mapping[Disruption, str] = {
    Disruption.NONE: "none",
    Disruption.RELOAD: "reload",
    Disruption.SERVICE_RESTART: "service restart",
    Disruption.KUBELET_RESTART: "kubelet restart",
    Disruption.PODS_DELETED: "pods deleted",
    Disruption.REBOOT: "reboot",
}
_COLOURS: Mapping[Disruption, Colour | None] = {
    Disruption.NONE: "green",
    Disruption.RELOAD: "green",
    Disruption.SERVICE_RESTART: "yellow",
    Disruption.KUBELET_RESTART: "yellow",
    Disruption.PODS_DELETED: "red",
    Disruption.REBOOT: "red",
}
_SIGNS: Mapping[str, str] = {"create": "+", "remove": "-", "restore": "<"}
_KINDS: Mapping[str, str] = {
    "file": "file",
    "unitFile": "unit file",
    "dropIn": "drop-in",
    "unit": "unit",
    "registry": "registry",
    "containerdConfig": "containerd's configuration",
    "systemd": "systemd",
    "inPlaceUpdate": "update in place",
}
_DIFF_COLOURS: Mapping[str, Colour] = {"+": "green", "-": "red", "@": "cyan"}
_MOST_DIFF_LINES = 200


def lines(found: Plan, style: Style) -> Iterator[str]:
    """Yield the text."""
    yield f"OperatingSystemConfig {found.checksum[:12]} of {found.source}"
    if found.resumed and (found.items or found.commands):
        yield "its apply was begun before and would be gone on with"
    if not found.items and not found.commands:
        yield "nothing to do"
    else:
        yield f"disruption: {style(_WORDS[found.disruption], _COLOURS[found.disruption])}"
    for item in found.items:
        yield ""
        yield from _item(item, style)
    if found.commands:
        yield ""
        yield style("units", "bold")
        for command in found.commands:
            word = style(_WORDS[command.disruption], _COLOURS[command.disruption])
            yield f"  {command.command} {command.unit} ({word}): {', '.join(command.reasons)}"
    if found.unchanged or found.notes:
        yield ""
    if found.unchanged:
        yield f"{found.unchanged} file{'s' if found.unchanged > 1 else ''} to be written already as wanted"
    yield from (f"note: {note}" for note in found.notes)


def _item(item: Item, style: Style) -> Iterator[str]:
    word = style(_WORDS[item.disruption], _COLOURS[item.disruption])
    sign = _SIGNS.get(item.action, "~")
    yield f"{sign} {item.action} {_KINDS[item.kind]} {printable(item.name)} ({word})"
    if item.before is not None or item.after is not None:
        yield f"    {_content(item.before)} -> {_content(item.after) if item.action != 'fetch' else 'not known'}"
    if item.note:
        yield f"    {item.note}"
    if item.diff:
        shown = item.diff.splitlines()
        for line in shown[:_MOST_DIFF_LINES]:
            yield f"    {style(printable(line), _DIFF_COLOURS.get(line[:1]))}"
        if len(shown) > _MOST_DIFF_LINES:
            yield f"    and {len(shown) - _MOST_DIFF_LINES} lines more (-o json has all)"


def _content(content: Content | None) -> str:
    return f"{content.size} bytes, sha256 {content.sha256}, mode {content.mode}" if content is not None else "none"
