"""Reads eviction traces of real engines."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cut:
    """One line of the trace.

    Attributes:
        request: External id of the request.
        life: 0, and one more after each preemption.
        variant: ``vtoken`` or ``naive``.
        length: Tokens computed at the cut; positions from here on do not see ``evicted``.
        evicted: Token ids (positions in the text) that left.
        live: Live tokens after the cut.
        freed_blocks: Blocks that went back to the pool.
        moved: Tokens copied to other slots.
    """

    request: str
    life: int
    variant: str
    length: int
    evicted: tuple[int, ...]
    live: int
    freed_blocks: int
    moved: int


def load_trace(path: Path) -> dict[str, list[Cut]]:
    """Read a trace file into the cuts of each request, in the order they happened."""
    cuts: dict[str, list[Cut]] = defaultdict(list)
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        fields["evicted"] = tuple(fields["evicted"])
        cuts[fields["request"]].append(Cut(**fields))
    return dict(cuts)


def merge_lives(cuts: Iterable[Cut]) -> list[Cut]:
    """The cuts of a request as if it had never been preempted.

    A preempted request starts again at length 0 and replays what it had generated. Tokens sampled
    in an earlier life saw that life's victims, so one schedule describes all rows only if every
    life chose the same victims at the same lengths.

    Args:
        cuts: The cuts of one request, all lives.

    Returns:
        One cut per length, in increasing order, each from the last life that reached it.

    Raises:
        AssertionError: If lives disagree, run backwards or skip a length an earlier one was cut at.
    """
    lives: dict[int, list[Cut]] = defaultdict(list)
    for cut in cuts:
        lives[cut.life].append(cut)
    merged: dict[int, Cut] = {}
    for life, events in sorted(lives.items()):
        lengths = [cut.length for cut in events]
        assert lengths == sorted(set(lengths)), f"life {life} was cut at {lengths}"
        missed = [known for known in merged if known < lengths[-1] and known not in lengths]
        assert not missed, f"life {life} was not cut at {missed}, an earlier life was"
        for cut in events:
            known = merged.get(cut.length)
            assert known is None or set(known.evicted) == set(cut.evicted), (
                f"{cut.request}: at length {cut.length} life {life} evicted {sorted(cut.evicted)}, "
                f"an earlier one {sorted(known.evicted)}"
            )
            merged[cut.length] = cut
    return [merged[length] for length in sorted(merged)]
