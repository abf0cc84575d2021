"""Documents that are made out of the code: written, or compared with what is there."""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(output: Path, text: str, *, description: str | None) -> int:
    """Write a document, or with `--check` say whether it is up to date; returns the exit code."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="fail if the document is not up to date")
    if not parser.parse_args().check:
        output.write_text(text)
        return 0
    if output.exists() and output.read_text() == text:
        return 0
    print(f"{output.relative_to(ROOT)} is out of date: run `make documents`", file=sys.stderr)
    return 1
