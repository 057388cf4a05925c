"""From a policy to victims: the only place where a policy's code is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vtoken_sdk.errors import PolicyError
from vtoken_sdk.policy import ScoringPolicy
from vtoken_sdk.view import LiveTokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from vtoken_sdk.policy import Policy
    from vtoken_sdk.signals import CutSignals
    from vtoken_sdk.table import TokenTable
    from vtoken_sdk.view import Moment

_NEVER = torch.iinfo(torch.int64).max


def choose_victims(
    policy: Policy,
    table: TokenTable,
    rows: Sequence[int],
    moments: Sequence[Moment],
    counts: Sequence[int],
    signals: CutSignals | None = None,
) -> Tensor:
    """Ask the policy which tokens of each sequence leave.

    Args:
        policy: The policy.
        table: The table, in step with the sequences.
        rows: Distinct rows.
        moments: One per row.
        counts: How many tokens each loses; at least that many must be evictable.
        signals: What the engine offers of them.

    Returns:
        Dense indices, int64 ``[len(rows), max(counts)]``; entries beyond a row's count are filler.

    Raises:
        PolicyError: If the policy returned the wrong shape or dtype.
    """
    if isinstance(policy, ScoringPolicy):
        view = LiveTokens(table, rows, moments, policy, signals)
        if policy.elementwise:
            scores = _scores(policy, view)
        else:
            ones = zip(rows, moments, strict=True)
            scores = torch.cat(
                [_scores(policy, LiveTokens(table, [r], [m], policy, signals)) for r, m in ones]
            )
        return lowest(scores, view, counts)
    return _selected(policy, table, rows, moments, counts, signals)


def proper_hint(
    policy: Policy, num_blocks: int, num_leaving: int, block_size: int
) -> tuple[int, ...] | None:
    """The policy's hint which blocks leave, checked.

    Raises:
        PolicyError: If it raises or does not name ``num_leaving`` distinct blocks of the table.
    """
    if num_leaving == 0:
        return None
    try:
        hint = policy.leaving_blocks(num_blocks, num_leaving, block_size)
        leave = None if hint is None else tuple(sorted({int(block) for block in hint}))
    except Exception as error:  # whatever a third party's code does
        raise PolicyError(f"policy {policy.name!r}: leaving_blocks() raised {error!r}") from error
    if leave is None:
        return None
    if len(leave) != num_leaving or not 0 <= leave[0] <= leave[-1] < num_blocks:
        raise PolicyError(
            f"policy {policy.name!r}: leaving_blocks() returned {hint!r}, but should name "
            f"{num_leaving} distinct blocks of {num_blocks}; the last ones leave instead"
        )
    return leave


def lowest(scores: Tensor, view: LiveTokens, counts: Sequence[int]) -> Tensor:
    """The lowest scores of each sequence, older tokens first on ties, whatever their order.

    Args:
        scores: float32 ``[num_live]``.
        view: The sequences.
        counts: How many of each.

    Returns:
        Dense indices, int64 ``[R, max(counts)]``, lowest score first.
    """
    bits = (scores + 0.0).view(torch.int32)  # + 0.0: a negative zero ties with zero
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    key = ((ordered << 32) + view.token_ids).masked_fill_(~view.evictable, _NEVER)
    padded = torch.full((len(counts), max(view.lengths)), _NEVER, device=key.device)
    padded[view.ragged.segment, view.ragged.offset] = key
    return padded.topk(max(counts), dim=1, largest=False, sorted=True).indices


def _scores(policy: ScoringPolicy, view: LiveTokens) -> Tensor:
    policy.observe(view)
    scores = policy.score(view)
    view.write_back()
    return _checked(policy, "score()", scores, (view.num_live,), torch.float32)


def _selected(
    policy: Policy,
    table: TokenTable,
    rows: Sequence[int],
    moments: Sequence[Moment],
    counts: Sequence[int],
    signals: CutSignals | None,
) -> Tensor:
    """One call per sequence; answers are padded to one width."""
    width, answers = max(counts), []
    for row, moment, count in zip(rows, moments, counts, strict=True):
        view = LiveTokens(table, [row], [moment], policy, signals)
        policy.observe(view)
        chosen = policy.select(view, count)
        view.write_back()
        chosen = _checked(policy, "select()", chosen, (count,), torch.int64)
        answers.append(torch.nn.functional.pad(chosen, (0, width - count)))
    return torch.stack(answers)


def _checked(
    policy: Policy, call: str, answer: Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """Shape and dtype are known on the host, so they cost nothing to check."""
    if not isinstance(answer, torch.Tensor):
        raise PolicyError(
            f"policy {policy.name!r}: {call} returned {type(answer).__name__}, not a tensor"
        )
    if tuple(answer.shape) != shape or answer.dtype != dtype:
        raise PolicyError(
            f"policy {policy.name!r}: {call} returned {answer.dtype} {list(answer.shape)}, "
            f"but should return {dtype} {list(shape)}"
        )
    return answer
