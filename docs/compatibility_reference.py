"""Write docs/reference/compatibility.md from the table the code refuses by.

Run ``python docs/compatibility_reference.py`` after changing it; ``--check`` only tells whether the
file is current.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vtoken_sdk.vllm.compat_table import Row, Status, compatibility
from vtoken_sdk.vllm.layout import SERVED_BACKENDS

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "reference" / "compatibility.md"
HEADER = """\
# Compatibility

Generated from `vtoken_sdk/vllm/features.py` by `docs/compatibility_reference.py`; change the code,
not this page. `vtoken doctor` shows the same, and tries the machine it runs on.

What is served has tests that show it to be right. What is refused is refused in the calling
process (`engine_args()`, `vtoken run`, `vtoken serve`) before anything starts, or by the engine as
it starts where only it can know. Whatever is in neither list is let through and was never tried.
"""


def table(rows: list[Row], remark: str) -> str:
    """Rows in Markdown."""
    lines = [["feature", remark], ["---"] * 2, *([row.feature, row.remark] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Write the page, or compare it with ``--check``."""
    rows = compatibility()
    served, refused = (
        [row for row in rows if row.status is status] for status in (Status.SERVED, Status.REFUSED)
    )
    page = "\n".join(
        [
            HEADER,
            f"## Served\n\n{table(served, 'conditions')}\n",
            f"Attention backends: {', '.join(f'`{name}`' for name in SERVED_BACKENDS)}.\n",
            f"## Refused\n\n{table(refused, 'why, and what to do')}\n",
        ]
    )
    if "--check" not in sys.argv:
        TARGET.write_text(page)
    elif not TARGET.is_file() or TARGET.read_text() != page:
        sys.exit(
            f"{TARGET.relative_to(ROOT)} is out of date; run "
            "`python docs/compatibility_reference.py`"
        )


if __name__ == "__main__":
    main()
