"""Shrinks programs of the state machine.

Hypothesis would shrink the choices it made, and a rule makes several steps of them; on the steps
themselves the same takes a tenth of the time and leaves less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vtoken_sdk.testing.rig import Step

    Fails = Callable[[list[Step]], bool]

MOST_TRIES = 400


def shrunk(program: list[Step], fails: Fails) -> list[Step]:
    """The smallest program that is found to fail as the given one does.

    Args:
        program: A program that fails.
        fails: Whether a program fails in the same way; one that makes no sense does not.
    """
    tries = 0

    def still(steps: list[Step]) -> bool:
        nonlocal tries
        tries += 1
        return tries <= MOST_TRIES and fails(steps)

    before: list[Step] | None = None
    while program != before:
        before = program
        program = _shorter(program, still)
        program = _simpler(program, still)
    renamed = _renamed(program)
    return renamed if fails(renamed) else program


def _shorter(program: list[Step], still: Fails) -> list[Step]:
    """Leave out runs of steps, long ones first."""
    length = len(program) // 2
    while length:
        start = len(program) - length
        while start >= 0:
            fewer = program[:start] + program[start + length :]
            if still(fewer):
                program = fewer
            start -= length
        length //= 2
    return program


def _simpler(program: list[Step], still: Fails) -> list[Step]:
    """Smaller numbers and fewer requests in a step."""
    for place in range(len(program)):
        for step in _simpler_steps(program[place]):
            changed = [*program[:place], step, *program[place + 1 :]]
            if still(changed):
                program = changed
                break
    return program


def _simpler_steps(step: Step) -> Iterator[Step]:
    """Simpler versions of a step, the simplest first."""
    if step.get("tokens", 1) > 1:
        most = step["tokens"]
        yield from ({**step, "tokens": n} for n in _smaller(most))
    counts: dict[str, Any] = step.get("counts", {})
    if len(counts) > 1:
        yield from ({**step, "counts": {name: count}} for name, count in counts.items())
    for name, count in counts.items():
        yield from ({**step, "counts": {**counts, name: n}} for n in _smaller(count))
    if len(step.get("requests", ())) > 1:
        yield from ({**step, "requests": [name]} for name in step["requests"])


def _renamed(program: list[Step]) -> list[Step]:
    """Requests and plans counted from 1."""
    names: dict[str, str] = {}
    for step in program:
        for name in (step.get("request"), step.get("plan")):
            if name and name not in names:
                names[name] = f"{name[0]}{1 + sum(old[0] == name[0] for old in names)}"
    return [{key: _with_names(value, names) for key, value in step.items()} for step in program]


def _with_names(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {names[name]: count for name, count in value.items()}
    if isinstance(value, list):
        return [names[name] for name in value]
    return names.get(value, value) if isinstance(value, str) else value


def _smaller(number: int) -> list[int]:
    """Numbers to try, smallest first."""
    return sorted({1, number // 2, number - 2, number - 1} & set(range(1, number)))
