"""``python -m vtoken_sdk.bench.demo``: four long texts in a pool too small for stock vLLM."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from vtoken_sdk.cli import main

EXAMPLES = Path("docs/examples")
TEXTS = ("moby_dick.txt", "war_and_peace.txt", "meeting.txt", "chat.txt")

OPTIONS = (
    "--requests 8 --max-tokens 64 --ignore-eos --dtype float32 "
    "--policy random --budget 256 --prefill-interval 256 --num-blocks 157"
)
"""Eight requests of about 55 blocks each when whole: stock vLLM fits three of them at a time.

Random eviction kills tokens everywhere, which is where blocks do not come back by themselves. In
float32, variants that see the same tokens say the same to the letter.
"""


def demo() -> None:
    """Print the command this is, then run it."""
    files = [str(EXAMPLES / text) for text in TEXTS]
    if not all(Path(file).is_file() for file in files):
        sys.exit(f"the demo reads {EXAMPLES}/: run it in a checkout of the project")
    arguments = ["run", *(word for file in files for word in ("--prompt-file", file))]
    arguments += shlex.split(OPTIONS)
    sys.stderr.write(f"$ {shlex.join(['vtoken', *arguments])}\n")
    main(arguments)


if __name__ == "__main__":
    demo()
