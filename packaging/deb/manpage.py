"""Man pages out of what the programs say of themselves with `--help`."""

import json
import re
import subprocess
from pathlib import Path


def manpage(program: Path) -> str:
    """Return the man page (section 8) of a program, with its commands that have help of their own."""
    text, name = _help(program), program.name
    commands = sorted(set(re.findall(r"^ {2,4}(?:" + re.escape(name) + r" )?([a-z]+) {2,}\S", text, re.M)))
    version = json.loads(_output(program, "version", "-o", "json"))["version"].removeprefix("v")
    title = f'.TH "{name.upper()}" "8" "" "gardener-agents {version}" "System Administration"\n'
    summary = text.split("\n\n")[1].strip().splitlines()[0].rstrip(".").lower()
    page = f"{title}.SH NAME\n{name} \\- {_escaped(summary)}\n{_section('SYNOPSIS AND OPTIONS', text)}"
    for command in commands:
        page += _section(f"{name} {command}".upper(), _help(program, command))
    return page


def _section(title: str, text: str) -> str:
    return f'.SH "{title}"\n.nf\n{_escaped(text.rstrip())}\n.fi\n'


def _escaped(text: str) -> str:
    lines = text.replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in lines)


def _help(program: Path, *command: str) -> str:
    return _output(program, *command, "--help")


def _output(program: Path, *arguments: str) -> str:
    environment = {"COLUMNS": "80", "PATH": "/usr/bin:/bin", "NO_COLOR": "1", "TERM": "dumb"}
    command = [str(program), *arguments]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout
