"""Programs are shrunk without regard to what they do."""

from __future__ import annotations

from vtoken_sdk.testing.shrinking import shrunk


def test_only_what_matters_is_left() -> None:
    program = [{"do": "add", "request": f"r{n}", "tokens": 20} for n in range(9)]
    program += [{"do": "evict", "counts": {"r5": 9, "r6": 7}}]

    def fails(steps) -> bool:
        added = {step["request"] for step in steps if step["do"] == "add"}
        evicted = [name for step in steps for name in step.get("counts", {})]
        enough = all(step.get("tokens", 3) >= 3 for step in steps)
        return bool(evicted) and set(evicted) <= added and enough

    small = shrunk(program, fails)
    assert small == [
        {"do": "add", "request": "r1", "tokens": 3},
        {"do": "evict", "counts": {"r1": 1}},
    ]


def test_a_program_that_cannot_be_renamed_keeps_its_names() -> None:
    program = [{"do": "add", "request": "r7", "tokens": 1}]
    assert shrunk(program, lambda steps: bool(steps) and steps[0]["request"] == "r7") == program
