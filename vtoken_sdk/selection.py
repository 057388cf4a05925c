"""From a policy to victims: the only place where a policy's code is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vtoken_sdk.errors import PolicyError
from vtoken_sdk.faults import RAISED, WRONG_ANSWER, Fault, FaultLog
from vtoken_sdk.policy import ScoringPolicy
from vtoken_sdk.view import LiveTokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    *,
    signals: CutSignals | None = None,
    faults: FaultLog | None = None,
    requests: Sequence[str] | None = None,
) -> Tensor:
    """Ask the policy which tokens of each sequence leave.

    Where its answer is wrong, or it raises, the oldest evictable tokens of the sequence leave.

    Args:
        policy: The policy.
        table: The table, in step with the sequences.
        rows: Distinct rows.
        moments: One per row.
        counts: How many tokens each loses; at least that many must be evictable.
        signals: What the engine offers of them.
        faults: Where faults are counted; None for a strict log.
        requests: What the sequences are called in messages.

    Returns:
        Dense indices, int64 ``[len(rows), max(counts)]``; entries beyond a row's count are filler.

    Raises:
        PolicyError: If the policy is at fault and the log is strict.
    """
    names = tuple(requests or (f"row {row}" for row in rows))
    faults = faults or FaultLog(policy.name, strict=True)
    asked = _Asked(policy, table, tuple(rows), tuple(moments), names, signals, faults)
    if isinstance(policy, ScoringPolicy):
        scores = _batch_scores(asked, policy)
        return lowest(_without_nan(asked, scores), asked.view(), counts)
    return _selected(asked, counts)


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
    except (Exception, SystemExit) as error:  # whatever a third party's code does
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
        Dense indices, int64 ``[R, max(counts)]``; the first entries of a row are its own, the
        rest is filler.
    """
    keys = _keys(scores, view)
    if len(set(view.lengths)) == 1:
        padded = keys.view(len(counts), -1)
    else:
        padded = torch.full((len(counts), max(view.lengths)), _NEVER, device=keys.device)
        padded[view.ragged.segment, view.ragged.offset] = keys
    # Where counts are equal, all that is found is used, so its order does not matter.
    order_matters = len(set(counts)) > 1
    return padded.topk(max(counts), dim=1, largest=False, sorted=order_matters).indices


def _keys(scores: Tensor, view: LiveTokens) -> Tensor:
    """Integers that sort like (score, age), int64 ``[num_live]``; pinned tokens come last."""
    bits = (scores + 0.0).view(torch.int32)  # + 0.0: a negative zero ties with zero
    flipped = (bits >> 31).bitwise_and_(0x7FFFFFFF)
    keys = bits.bitwise_xor_(flipped).long().bitwise_left_shift_(32).add_(view.token_ids)
    return keys.masked_fill_(~view.evictable, _NEVER)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The sequences a policy is asked about, and where its faults go."""

    policy: Policy
    table: TokenTable
    rows: tuple[int, ...]
    moments: tuple[Moment, ...]
    requests: tuple[str, ...]
    signals: CutSignals | None
    faults: FaultLog

    def view(self) -> LiveTokens:
        """A new view: what a policy did to the one it was given must not decide what is pinned."""
        return LiveTokens(self.table, self.rows, self.moments, self.policy, self.signals)

    def one_by_one(self) -> list[_Asked]:
        """The sequences apart."""
        return [
            _Asked(self.policy, self.table, (r,), (m,), (q,), self.signals, self.faults)
            for r, m, q in zip(self.rows, self.moments, self.requests, strict=True)
        ]


def _batch_scores(asked: _Asked, policy: ScoringPolicy) -> Tensor:
    """Scores of all sequences, joined; a batch that fails is tried again sequence by sequence."""
    if policy.elementwise and len(asked.rows) > 1:
        view = asked.view()
        try:
            return _scores(policy, view)
        except (Exception, SystemExit):  # a third party's code; who is at fault shows below
            pass
    return torch.cat([_scores_of_one(one, policy) for one in asked.one_by_one()])


def _scores_of_one(asked: _Asked, policy: ScoringPolicy) -> Tensor:
    view = asked.view()
    scores = _guarded(asked, lambda: _scores(policy, view))
    # Equal scores: ties go to the oldest.
    return torch.zeros(view.num_live, device=asked.table.device) if scores is None else scores


def _scores(policy: ScoringPolicy, view: LiveTokens) -> Tensor:
    policy.observe(view)
    scores = _checked("score()", policy.score(view), (view.num_live,), torch.float32, view)
    view.write_back()
    return scores


def _without_nan(asked: _Asked, scores: Tensor) -> Tensor:
    """Scores of a sequence with a NaN among its evictable tokens are all made equal."""
    view = asked.view()
    wrong = scores.isnan() & view.evictable
    codes = torch.zeros(len(asked.rows), dtype=torch.int64, device=scores.device)
    codes.index_add_(0, view.ragged.segment, wrong.long()).clamp_(max=int(Fault.NAN))
    asked.faults.on_device(codes, asked.requests)
    return scores.masked_fill(codes[view.ragged.segment] > 0, 0.0)


def _selected(asked: _Asked, counts: Sequence[int]) -> Tensor:
    """One call per sequence; answers are padded to one width."""
    width, answers = max(counts), []
    for one, count in zip(asked.one_by_one(), counts, strict=True):
        answers.append(torch.nn.functional.pad(_selected_of_one(one, count), (0, width - count)))
    return torch.stack(answers)


def _selected_of_one(asked: _Asked, count: int) -> Tensor:
    view, truth = asked.view(), asked.view()

    def select() -> Tensor:
        asked.policy.observe(view)
        answer = asked.policy.select(view, count)
        chosen = _checked("select()", answer, (count,), torch.int64, view)
        view.write_back()
        return chosen

    chosen = _guarded(asked, select)
    equal = torch.zeros(truth.num_live, device=asked.table.device)
    oldest = lowest(equal, truth, [count])[0]
    if chosen is None:
        return oldest
    code = _selection_fault(chosen, truth)
    asked.faults.on_device(code[None], asked.requests)
    return torch.where(code > 0, oldest, chosen)


def _selection_fault(chosen: Tensor, view: LiveTokens) -> Tensor:
    """The fault of a selection, int64 ``[]``."""
    outside = (chosen < 0) | (chosen >= view.num_live)
    inside = chosen.clamp(0, view.num_live - 1)
    ordered = inside.sort().values
    code = torch.where((ordered[1:] == ordered[:-1]).any(), int(Fault.DUPLICATE), 0)
    code = torch.where((~view.evictable[inside]).any(), int(Fault.PINNED), code)
    return torch.where(outside.any(), int(Fault.OUT_OF_RANGE), code)


def _guarded(asked: _Asked, call: Callable[[], Tensor]) -> Tensor | None:
    """The answer, or None where there is no proper one: then a fault was counted.

    Raises:
        PolicyError: If the log is strict.
    """
    try:
        return call()
    except _WrongAnswerError as error:
        asked.faults.on_host(WRONG_ANSWER, str(error), asked.requests, error)
    except (Exception, SystemExit) as error:  # whatever a third party's code does
        asked.faults.on_host(RAISED, f"it raised {error!r}", asked.requests, error)
    return None


class _WrongAnswerError(Exception):
    """An answer of the wrong kind."""


def _checked(
    call: str, answer: object, shape: tuple[int, ...], dtype: torch.dtype, view: LiveTokens
) -> Tensor:
    """Shape and dtype are known on the host, so they cost nothing to check."""
    if not isinstance(answer, torch.Tensor):
        raise _WrongAnswerError(f"{call} returned {type(answer).__name__}, not a tensor")
    if tuple(answer.shape) != shape or answer.dtype != dtype:
        raise _WrongAnswerError(
            f"{call} returned {answer.dtype} {list(answer.shape)}, "
            f"but should return {dtype} {list(shape)}"
        )
    if answer.device != view.device:
        raise _WrongAnswerError(f"{call} returned a tensor on {answer.device}, not {view.device}")
    return answer
