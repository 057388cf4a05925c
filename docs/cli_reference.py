"""Write docs/reference/cli.md from the command line's own help texts.

Run ``python docs/cli_reference.py`` after changing a command; ``--check`` only tells whether the
file is current.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "reference" / "cli.md"
HEADER = """\
# Command reference

Generated from `--help` by `docs/cli_reference.py`; change the commands, not this page.
Exit codes: 0 for success, 1 for a failure, 2 for a request that cannot be carried out.
With `--json`, standard output holds JSON and nothing else.
"""
LISTED = re.compile(r"^  ([a-z][a-z-]*)(?:  |$)")


def help_text(*words: str) -> str:
    """What ``vtoken WORDS --help`` prints, as it looks in a terminal of 80 columns."""
    return subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), *words, "--help"],
        env={**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def commands_in(text: str) -> list[str]:
    """The names listed under ``Commands:``."""
    _, _, listing = text.partition("\nCommands:\n")
    return [match[1] for line in listing.splitlines() if (match := LISTED.match(line))]


def sections(*words: str) -> list[str]:
    """A section for a command, then one for each command inside it."""
    text = help_text(*words)
    lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
    section = f"## `{' '.join(('vtoken', *words))}`\n\n```text\n{lines}\n```\n"
    return [section, *(part for name in commands_in(text) for part in sections(*words, name))]


def main() -> None:
    """Write the page, or compare it with ``--check``."""
    page = "\n".join([HEADER, *sections()])
    if "--check" not in sys.argv:
        TARGET.write_text(page)
    elif not TARGET.is_file() or TARGET.read_text() != page:
        sys.exit(f"{TARGET.relative_to(ROOT)} is out of date; run `python docs/cli_reference.py`")


if __name__ == "__main__":
    main()
