"""Whether a plan fits the sequence it is to be committed to: for plans that come from outside.

Plans of our own planners fit by construction, so the batched path does not look. This looks at
every index and waits for the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vtoken_sdk.errors import TableError
from vtoken_sdk.planner import Outcome
from vtoken_sdk.tensors import ceil_div

if TYPE_CHECKING:
    from torch import Tensor

    from vtoken_sdk.planner import MovePlan


def check_plan(plan: MovePlan, length: int, dead: Tensor, block_size: int) -> None:
    """Refuse a plan for one sequence that would lose, double or misplace a token.

    Args:
        plan: Of one sequence.
        length: Its dense length.
        dead: Dense indices of its evicted tokens, int64 ``[k]``.
        block_size: Tokens per block (S).

    Raises:
        TableError: Saying what is wrong.
    """
    taken = sum(plan.taken_blocks)
    _check_sizes(plan, length, len(dead))
    capacity = (ceil_div(length, block_size) + taken) * block_size
    for name, indices in (("sources", plan.sources), ("destinations", plan.destinations)):
        if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < capacity:
            raise TableError(f"move {name} lie outside 0..{capacity - 1}")
    live = torch.arange(capacity, device=dead.device) < length
    live[dead] = False
    real = plan.sources != plan.destinations
    sources, destinations = plan.sources[real], plan.destinations[real]
    _refuse(sources[~live[sources]], "moves start at indices where no live token is")
    _refuse(destinations[live[destinations]], "moves end on live tokens, at indices")
    _refuse(_repeated(destinations), "several moves end at indices")
    _refuse(_repeated(sources), "several moves start at indices")
    live[sources] = False
    live[destinations] = True
    _check_dense(plan, live.view(-1, block_size), ceil_div(length, block_size), taken)


def _check_sizes(plan: MovePlan, length: int, evicted: int) -> None:
    if plan.outcomes and plan.outcomes[0] is not Outcome.ACCEPTED:
        raise TableError(f"the plan was declined ({plan.outcomes[0]}): make another one")
    if len(plan.lengths) != 1 or plan.sources.shape != plan.destinations.shape:
        raise TableError("the plan is not one for a single sequence")
    if plan.sources.ndim != 2 or plan.sources.shape[0] != 1:
        raise TableError(f"moves have shape {tuple(plan.sources.shape)}, but should be (1, moves)")
    if plan.sources.dtype != torch.int64 or plan.destinations.dtype != torch.int64:
        raise TableError("moves must be int64")
    if plan.lengths[0] != length or plan.new_lengths[0] != length - evicted:
        raise TableError(
            f"the plan is stale: it leads from {plan.lengths[0]} to {plan.new_lengths[0]} tokens, "
            f"but the sequence has {length}, {evicted} of them evicted"
        )


def _check_dense(plan: MovePlan, live: Tensor, held: int, taken: int) -> None:
    """After the moves, the kept blocks hold all live tokens and no hole."""
    need = ceil_div(plan.new_lengths[0], live.shape[1])
    if plan.kept_blocks is None:
        kept = torch.arange(need, device=live.device)
    else:
        kept = plan.kept_blocks.flatten()[:need]
    inside = bool(((kept >= 0) & (kept < held + taken)).all())
    if len(kept) != need or not inside or _repeated(kept).numel():
        raise TableError(f"{need} distinct blocks of {held + taken} should be kept")
    if plan.freed_blocks != (held + taken - need,):
        raise TableError(f"{held + taken - need} blocks leave the table, not {plan.freed_blocks}")
    if not bool(live[kept].flatten()[: plan.new_lengths[0]].all()):
        raise TableError("survivors are left behind in blocks that leave, or holes stay")


def _repeated(indices: Tensor) -> Tensor:
    ordered = indices.sort().values
    return ordered[1:][ordered[1:] == ordered[:-1]]


def _refuse(wrong: Tensor, what: str) -> None:
    if wrong.numel():
        raise TableError(f"{what}: {sorted(set(wrong.tolist()))}")
