"""Every command in the documents is known here, with what runs it: one that is new fails until it has a test."""

import ast
import json
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.documented import LANGUAGES, ROOT, Command, blocks, commands, commands_in, documents
from tests.support.documented_commands import COMMANDS, Impossible, Make, Ran, Shown

PROGRAMS = {
    "gardener-node-agent": [sys.executable, "-m", "nodeagent"],
    "gardenlet": [sys.executable, "-m", "gardenlet"],
    "python": [sys.executable],
}
PROOFS = [(line, proof) for line, proofs in COMMANDS.items() for proof in proofs]


Kind = TypeVar("Kind", Ran, Make, Shown, Impossible)


def of_kind(kind: type[Kind]) -> list[tuple[str, Kind]]:
    """Return the commands with a proof of a kind."""
    return [(line, proof) for line, proof in PROOFS if isinstance(proof, kind)]


def named(value: object) -> str:
    """Return what a case is called."""
    return value if isinstance(value, str) else type(value).__name__


@cache
def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command at the repository's root, once."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def words(line: str) -> list[str]:
    """Return a documented command as arguments: our programs are those of the source tree."""
    program, *arguments = shlex.split(line)
    return [*PROGRAMS.get(program, [program]), *arguments]


def source(test: str) -> str:
    """Return the source of a test as `path::function`, or a whole file; empty if there is no such test."""
    path, _, function = test.partition("::")
    text = (ROOT / path).read_text() if (ROOT / path).is_file() else ""
    if not function:
        return text
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return next((ast.get_source_segment(text, node) or "" for node in nodes if node.name == function), "")


def test_every_command_is_known() -> None:
    """The commands of the documents are those of the table: none without a proof, and no proof of what is gone."""
    found = list(commands())
    assert len(found) > 60
    unknown = [f"{command.document}: {command.line}" for command in found if command.line not in COMMANDS]
    assert unknown == [], "name what runs them in tests/support/documented_commands.py"
    assert set(COMMANDS) - {command.line for command in found} == set()
    assert all(COMMANDS.values())


def test_every_block_says_what_it_is() -> None:
    """A block without a language could hide commands."""
    wrong = [
        f"{path.relative_to(ROOT)}: {language or 'none'}"
        for path in documents()
        for language, _ in blocks(path)
        if language not in LANGUAGES
    ]
    assert wrong == []


def test_commands_are_found_in_blocks_and_sentences(tmp_path: Path) -> None:
    """The collector itself: comments and output are no commands, continued lines are one."""
    assert list(commands_in("sh", "# why\nmake a  # because\n\nmake b \\\n  c\n")) == ["make a", "make b c"]
    assert list(commands_in("console", "$ make a\nmake: done\n$ make b\n")) == ["make a", "make b"]
    assert list(commands_in("yaml", "make: a\n")) == []
    assert Command("make help", "README.md") in list(commands())
    document = tmp_path / "a.md"
    document.write_text("```sh\nmake a\n```\nText\n```console\n$ make b\n```\n")
    assert [language for language, _ in blocks(document)] == ["sh", "console"]


@pytest.mark.parametrize(("line", "proof"), of_kind(Ran), ids=named)
def test_what_is_cheap_is_run(line: str, proof: Ran) -> None:
    """Run as it is written, with an example for a placeholder: the exit code is 0 and the output what is expected."""
    for placeholder, example in proof.examples.items():
        line = line.replace(placeholder, example)
    done = run(*words(line))
    assert done.returncode == 0, done.stderr
    if proof.prints == "JSON":
        assert json.loads(done.stdout)["$schema"]
    else:
        assert re.search(proof.prints, done.stdout, re.M), done.stdout


@pytest.mark.parametrize(("line", "proof"), of_kind(Make), ids=named)
def test_make_would_run_what_is_said(line: str, proof: Make) -> None:
    """The target exists and is listed, its recipe has these words, and each program of ours in it knows its arguments."""
    arguments = shlex.split(line)[1:]
    dry = run("make", "--dry-run", "--always-make", *arguments)
    assert dry.returncode == 0, dry.stderr
    assert re.search(rf"^{arguments[0]}:.*## ", (ROOT / "Makefile").read_text(), re.M)
    assert proof.recipe in dry.stdout, dry.stdout


@pytest.mark.parametrize("command", sorted({proof.program for _, proof in of_kind(Make) if proof.program}))
def test_programs_behind_make_know_their_arguments(command: str) -> None:
    """What a recipe runs answers `--help` with exit code 0, after the arguments that the recipe gives it."""
    done = run(sys.executable, *shlex.split(command), "--help")
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


@pytest.mark.parametrize(("line", "proof"), of_kind(Shown), ids=named)
def test_the_named_test_exists_and_does_that(line: str, proof: Shown) -> None:
    """The test that the table names is there, and its source has the words by which it does what the command does."""
    text = source(proof.test)
    assert text, f"{line}: no {proof.test}"
    assert proof.words in text, f"{line}: {proof.test} has no {proof.words}"


def test_only_what_needs_programs_of_others_is_not_run() -> None:
    """What no test runs needs a container engine or a program that CI does not have; all of kind's stands in a document that says so."""
    lines = {line for line, _ in of_kind(Impossible)}
    assert {line.split()[0] for line in lines} == {"docker", "kind", "kubectl", "skopeo"}
    engine = {line for line in lines if line.split()[0] in ("docker", "kind")}
    where = {command.document for command in commands() if command.line in engine}
    assert where == {"packaging/kind/README.md"}
    assert "No test runs this, and CI cannot" in (ROOT / "packaging/kind/README.md").read_text()


CONFIG = """\
apiVersion: nodeagent.config.gardener.cloud/v1alpha1
kind: NodeAgentConfiguration
newer: 1
logLevel: loud
apiServer: {server: "https://api.example.org"}
controllers:
  operatingSystemConfig: {secretName: gardener-node-agent-worker-5dcc4, kubernetesVersion: v1.34.4}
"""
OSC = """\
apiVersion: extensions.gardener.cloud/v1alpha1
kind: OperatingSystemConfig
metadata: {name: a, namespace: b}
spec:
  type: gardenlinux
  purpose: reconcile
  files:
  - {path: /etc/a, content: {inline: {encoding: "", data: a}}}
  - path: etc/b
    content: {inline: {encoding: "", data: b}}
"""


def test_validate_prints_what_the_document_shows(tmp_path: Path) -> None:
    """The command of the document, in a folder with such files, prints the lines of the document."""
    (tmp_path / "config-v1.150.0.yaml").write_text(CONFIG)
    (tmp_path / "osc.yaml").write_text(OSC)
    shown = next(
        text
        for text in (text for _, text in blocks(ROOT / "docs/node-agent-commands.md", "console"))
        if text.startswith("$ gardener-node-agent validate")
    )
    command, *lines = shown.splitlines()
    done = subprocess.run(
        words(command.removeprefix("$ ")),
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stdout.splitlines() == lines
