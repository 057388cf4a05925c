"""The parts of a new policy that depend on its kind and on the signal it asks for."""

from __future__ import annotations

from dataclasses import dataclass

MARK = "# <- your idea"
"""Ends the line that an author changes first."""


@dataclass(frozen=True, slots=True)
class _Rating:
    """An idea to start from.

    Attributes:
        expression: A number per token, higher = keep.
        observe: The body of ``observe()``, or nothing.
        test: Body of a test of it; ``{policy}`` is the class.
        says: What that test says.
    """

    expression: str
    says: str
    test: str
    observe: str = ""


_RATINGS = {
    None: _Rating(
        "seq.token_ids.float()",
        "the_oldest_tokens_leave_first",
        "view = make_view({policy}(sinks=4, recent=16), 64)\n"
        "    assert victims(view, 10) == list(range(4, 14))",
    ),
    "attention": _Rating(
        'seq.column("mass").clone()',
        "what_nobody_looks_at_leaves_first",
        "attention = torch.ones(1, 64)  # [queries, tokens]\n"
        "    attention[:, [10, 30]] = 0.0\n"
        "    view = make_view({policy}(sinks=4, recent=16), 64, attention=attention)\n"
        "    assert victims(view, 2) == [10, 30]",
        'seq.column("mass")[:] += seq.attention',
    ),
    "keys": _Rating(
        "-seq.keys(0).float().norm(dim=-1).mean(dim=-1)",
        "large_keys_leave_first",
        "keys = torch.ones(64, 2, 8)  # [tokens, heads, head_size]\n"
        "    keys[[10, 30]] *= 9.0\n"
        "    view = make_view({policy}(sinks=4, recent=16), 64, keys=[keys])\n"
        "    assert victims(view, 2) == [10, 30]",
    ),
}

_OBSERVE = """\
    def observe(self, seq: SequenceView) -> None:
        \"\"\"Take notes, once per eviction point; columns follow their tokens.\"\"\"
        {body}

"""

_SCORE = """\
    def score(self, seq: SequenceView) -> torch.Tensor:
        \"\"\"Rate the live tokens, float32 [num_live]; the lowest leave, older first.\"\"\"
        return {expression}  {mark}
"""

_SELECT = """\
    def select(self, seq: SequenceView, count: int) -> torch.Tensor:
        \"\"\"Choose tokens to evict: distinct positions in the view, all evictable.\"\"\"
        rating = {expression}  {mark}
        rating = rating.masked_fill(~seq.evictable, float("inf"))
        by_age = seq.token_ids.argsort()  # ties go to the older token, wherever it lies
        return by_age[rating[by_age].argsort(stable=True)][:count]
"""


def fields(kind: str, signal: str | None, class_name: str) -> dict[str, str]:
    """What to fill in.

    Args:
        kind: ``scoring`` or ``selecting``.
        signal: ``attention``, ``keys`` or None.
        class_name: Of the policy.
    """
    rating = _RATINGS[signal]
    base = "ScoringPolicy" if kind == "scoring" else "Policy"
    methods = _OBSERVE.format(body=rating.observe) if rating.observe else ""
    methods += (_SCORE if kind == "scoring" else _SELECT).format(
        expression=rating.expression, mark=MARK
    )
    return {
        "base": base,
        "imports": _imports(base, signal),
        "declarations": _declarations(kind, signal),
        "methods": methods,
        "test_imports": _test_imports(signal),
        "behaviour": _behaviour(rating, class_name),
    }


def _imports(base: str, signal: str | None) -> str:
    names = [base, "SequenceView", *(["Signal"] if signal else []), "hookimpl"]
    return (
        "from dataclasses import dataclass\n\n"
        f"import torch\nfrom vtoken_sdk import {', '.join(names)}"
    )


def _declarations(kind: str, signal: str | None) -> str:
    lines = []
    if signal:
        lines.append(f"    signals = {{Signal.{signal.upper()}}}\n")
    if kind == "scoring":
        lines.append("    elementwise = True  # no token's score depends on another token\n")
    return "".join(lines)


def _test_imports(signal: str | None) -> str:
    return "import torch\n" if signal else ""


def _behaviour(rating: _Rating, class_name: str) -> str:
    return f"def test_{rating.says}() -> None:\n    {rating.test.format(policy=class_name)}"
