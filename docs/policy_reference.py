"""Write docs/reference/policies.md from the built-in policies' own docstrings, fields and presets.

Run ``python docs/policy_reference.py`` after changing a policy; ``--check`` only tells whether the
file is current.
"""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtoken_sdk import registry
from vtoken_sdk.errors import PolicyFamilyError
from vtoken_sdk.parameters import parameters_of, presets_of
from vtoken_sdk.presses import INSTEAD, WORKING

if TYPE_CHECKING:
    from vtoken_sdk import Policy

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "reference" / "policies.md"
HEADER = """\
# Built-in policies

Generated from the files in `policies/` by `docs/policy_reference.py`; change the policies, not this
page. `vtoken policies info NAME` shows the same.

Every policy has two presets: `default`, for serving, and `paper`, which does what the publication
or its code does, as far as a paged cache allows. Parameters that are set override either. What
holds for all policies, in both presets:

- all layers and heads of a sequence keep the same tokens, so what they say is averaged;
- budgets are numbers of tokens, and hold while tokens are generated, not only after the prompt;
- tokens leave at eviction points, a block at a time, and keep their positions in the text;
- keys are those of the KV heads, as they lie in the cache: with their rotation;
- where two scores are equal, the older token leaves.
"""
SECTION = re.compile(r"^\w[\w ]*:$", re.MULTILINE)


def description(policy: type[Policy]) -> str:
    """The docstring up to its ``Args:``."""
    return SECTION.split(inspect.getdoc(policy) or "")[0].rstrip()


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def parameters(policy: type[Policy]) -> str:
    """A row for each parameter, a column for each preset."""
    presets = presets_of(policy)
    rows = [
        [
            f"`{each.name}`",
            *(f"`{args.get(each.name, each.default)}`" for args in presets.values()),
            each.doc,
        ]
        for each in parameters_of(policy)
    ]
    return table(["parameter", *presets, "meaning"], rows)


def section(name: str, policy: Any, more: str = "") -> str:
    """What there is to know about a policy."""
    signals = ", ".join(sorted(getattr(policy, "signals", ()))) or "nothing but positions"
    looks = more or f"Looks at: {signals}.\n"
    return f"## `{name}`\n\n{description(policy)}\n\n{looks}\n{parameters(policy)}\n"


def family(module: str) -> str:
    """The presses of kvpress: what works, and what to use instead of what does not."""
    press = import_module(module).Press
    rows = [
        [f"`kvpress:{name}`", f"attention of the last {queries}" if queries else "keys"]
        for name, queries in WORKING.items()
    ]
    instead = "".join(f"- instead of `{name}`: {policy}\n" for name, policy in INSTEAD.items())
    more = f"{table(['policy', 'looks at'], rows)}\n\n{instead}"
    return section("kvpress:PRESS", press, more)


def sections() -> list[str]:
    """A section for each built-in policy."""
    found = []
    for info in registry.list_policies():
        if info.builtin:
            try:
                found.append(section(info.name, registry.load_policy(info.name)))
            except PolicyFamilyError:
                found.append(family(info.module))
    return found


def main() -> None:
    """Write the page, or compare it with ``--check``."""
    page = "\n".join([HEADER, *sections()])
    if "--check" not in sys.argv:
        TARGET.write_text(page)
    elif not TARGET.is_file() or TARGET.read_text() != page:
        sys.exit(
            f"{TARGET.relative_to(ROOT)} is out of date; run `python docs/policy_reference.py`"
        )


if __name__ == "__main__":
    main()
