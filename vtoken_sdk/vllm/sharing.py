"""Which way a cut takes where blocks serve the prefix cache: pure functions of block counts.

A shared prefix lies in the leading blocks of a table, and nobody may write to it. Three ways:

* it leaves whole: survivors of the leading blocks drop into the holes of private ones, and the
  originals go on serving the cache (where as many blocks leave anyway);
* *repack*: the same with fresh blocks, as many as are shared beyond those that leave anyway. Worth
  it only if all sequences that share are cut in the same call: a block with another reader left
  is not freed, so moving out of it would only take memory;
* the cut *waits*: what is shared costs this sequence nothing while others hold it anyway, and what
  it has for itself is within its budget. Once that is not so, the first way is open.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Sharer:
    """A sequence that is due for a cut and shares leading blocks.

    Attributes:
        req_id: The request.
        shared: Ids of its leading blocks up to the last one with another owner, in order.
        num_leaving: Blocks the cut would free if none were shared.
    """

    req_id: str
    shared: tuple[int, ...]
    num_leaving: int

    @property
    def fresh(self) -> int:
        """Blocks it takes if it moves out of all it shares."""
        return max(len(self.shared) - self.num_leaving, 0)


def worth_repacking(
    sharers: Sequence[Sharer], owners: Mapping[int, int], free_blocks: int
) -> frozenset[str]:
    """Who moves out of shared blocks, because that frees more blocks than it takes.

    Sequences that share their first block decide together. A group is taken whole or not at all,
    the one that gains most first, while free blocks last.

    Args:
        sharers: All sequences of this call that are due and share blocks.
        owners: Owners of each of their shared blocks, by block id.
        free_blocks: Blocks that may be taken.

    Returns:
        Request ids, including those that need no fresh block.
    """
    groups: dict[int, list[Sharer]] = defaultdict(list)
    for sharer in sharers:
        groups[sharer.shared[0]].append(sharer)
    chosen = {sharer.req_id for sharer in sharers if not sharer.fresh}
    ranked = sorted(groups.values(), key=lambda group: _gain(group, owners), reverse=True)
    for group in ranked:
        taken = sum(sharer.fresh for sharer in group)
        if taken and _gain(group, owners) > 0 and taken <= free_blocks:
            free_blocks -= taken
            chosen.update(sharer.req_id for sharer in group)
    return frozenset(chosen)


def _gain(group: Sequence[Sharer], owners: Mapping[int, int]) -> int:
    """Blocks whose last owner leaves in this call, less the fresh ones that takes."""
    leavers = Counter(block for sharer in group for block in sharer.shared)
    freed = sum(owners[block] == count for block, count in leavers.items())
    return freed - sum(sharer.fresh for sharer in group)
