"""The commands of the documents: of fenced blocks, and within sentences."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = {"sh", "console", "yaml", "text"}
"""Of fenced blocks: `sh` has a command on each line, `console` also what it prints, the others have no commands."""
_GENERATED = {"conformance.md", "logging.md", "metrics.md"}
_PROGRAMS = "make|python -m|gardener-node-agent|gardenlet|helm|kubectl|curl|journalctl|skopeo|systemctl|kind|docker"
_WHOLE = re.compile(rf"`((?:{_PROGRAMS}) [^`]+)`")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Command:
    """One command, and where it stands."""

    line: str
    document: str


def documents() -> list[Path]:
    """Return what people read, but for what is generated."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "tests/lab/README.md"]
    return [*found, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "packaging").rglob("*.md"))]


def blocks(document: Path, language: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield language and text of the fenced blocks of a document, of one language or of all."""
    for found, text in _BLOCK.findall(document.read_text()):
        if language is None or found == language:
            yield found, text


def commands_in(language: str, text: str) -> Iterator[str]:
    """Yield the commands of a block: comments and what is printed are left out, lines that go on are joined."""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if language == "console" and line.startswith("$ "):
            yield line.removeprefix("$ ")
        elif language == "sh" and (bare := re.sub(r"(^|\s+)#.*$", "", line).strip()):
            yield bare


def commands() -> Iterator[Command]:
    """Yield all commands of all documents."""
    for path in documents():
        name = str(path.relative_to(ROOT))
        for language, text in blocks(path):
            yield from (Command(line, name) for line in commands_in(language, text))
        if path.name not in _GENERATED:
            sentences = _BLOCK.sub("", path.read_text())
            yield from (Command(line, name) for line in _WHOLE.findall(sentences))
