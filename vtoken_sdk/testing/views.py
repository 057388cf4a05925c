"""Views made from given attention and keys, to test a policy without an engine.

``view = make_view(MyPolicy(), 40, attention=rows)`` is what the policy would be shown;
``victims(view, 3)`` are the tokens it gives up, and ``victims(view.shuffled(), 3)`` must be the
same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from vtoken_sdk.errors import PolicyError
from vtoken_sdk.policy import Policy, ScoringPolicy, Signal
from vtoken_sdk.scoring import in_view_order
from vtoken_sdk.selection import lowest
from vtoken_sdk.table import TokenTable
from vtoken_sdk.view import LiveTokens, Moment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor


def make_view(
    policy: Policy,
    token_ids: Sequence[int] | int,
    *,
    num_computed_tokens: int | None = None,
    attention: Tensor | None = None,
    keys: Sequence[Tensor] = (),
    columns: Mapping[str, Tensor] | None = None,
    moment: tuple[int, int] = (0, 0),
) -> GivenTokens:
    """Make the view a policy would be shown at an eviction point.

    Tensors are in the order of ``token_ids``.

    Args:
        policy: Whose view it is. It can read the signals it declares, as in an engine.
        token_ids: The live tokens as they stand in memory; a number n stands for 0 to n - 1.
        num_computed_tokens: Length of the text; by default the last live token ends it.
        attention: What each query since the last eviction point gave to each live token, float32
            ``[queries, num_live]``, the newest query last.
        keys: For each layer ``[num_live, kv_heads, head_size]``.
        columns: What the policy's columns hold from earlier eviction points, ``[num_live]`` each.
        moment: What ``seq.random()`` depends on: the request, and how often it was cut before.

    Raises:
        ValueError: If shapes do not fit each other.
    """
    ids = tuple(range(token_ids) if isinstance(token_ids, int) else token_ids)
    length = max(ids) + 1 if num_computed_tokens is None else num_computed_tokens
    given = _Given(
        policy, ids, Moment(length, *moment), attention, tuple(keys), dict(columns or {})
    )
    given.check()
    return GivenTokens(given)


@dataclass(frozen=True, slots=True)
class _Given:
    policy: Policy
    token_ids: tuple[int, ...]
    moment: Moment
    attention: Tensor | None
    keys: tuple[Tensor, ...]
    columns: dict[str, Tensor]

    def check(self) -> None:
        count = len(self.token_ids)
        if len(set(self.token_ids)) != count or max(self.token_ids) >= self.num_tokens:
            raise ValueError(f"token_ids must be distinct and below {self.num_tokens}")
        if self.attention is not None and self.attention.shape[1:] != (count,):
            raise ValueError(
                f"attention must be [queries, {count}], got {list(self.attention.shape)}"
            )
        for name, tensor in [("keys", k) for k in self.keys] + [*self.columns.items()]:
            if len(tensor) != count:
                raise ValueError(f"{name} must be [{count}, ...], got {list(tensor.shape)}")

    @property
    def num_tokens(self) -> int:
        return self.moment.num_computed_tokens

    def ordered(self, order: Tensor) -> _Given:
        return replace(
            self,
            token_ids=tuple(self.token_ids[i] for i in order.tolist()),
            attention=None if self.attention is None else self.attention[:, order],
            keys=tuple(keys[order] for keys in self.keys),
            columns={name: values[order] for name, values in self.columns.items()},
        )


class GivenTokens(LiveTokens):
    """A ``SequenceView`` of one sequence whose signals are given; see :func:`make_view`."""

    def __init__(self, given: _Given) -> None:
        table = TokenTable(block_size=16)
        row = table.row("given")
        table.sync([row], [len(given.token_ids)])
        table.token_id[row, : len(given.token_ids)] = torch.tensor(given.token_ids).int()
        super().__init__(table, [row], [given.moment], given.policy)
        self.given = given
        for name, values in given.columns.items():
            self.column(name).copy_(values)

    @property
    def attention(self) -> Tensor:
        """The given rows, summed or their last ``attention_window()``."""
        rows = self._attention("attention")
        window = self.given.policy.attention_window()
        if window is None:
            # In one order whatever the order in memory, or sums would differ in their last bits.
            order = self.token_ids.argsort()
            return in_view_order(rows[:, order].sum(0), order)
        missing = max(window - len(rows), 0)
        return torch.nn.functional.pad(rows, (0, 0, missing, 0))[-window:]

    @property
    def query_count(self) -> Tensor:
        """Given queries from the token's own on, int64 ``[num_live]``."""
        return (self.age + 1).clamp(max=len(self._attention("query_count")))

    def keys(self, layer: int) -> Tensor:
        """The given keys of a layer."""
        return self._keys(f"keys({layer})")[layer].clone()

    @property
    def num_layers(self) -> int:
        """Layers with keys."""
        return len(self._keys("num_layers"))

    def shuffled(self, seed: int = 0) -> GivenTokens:
        """The same tokens in another order in memory: no policy may care."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.given.token_ids), generator=generator)
        return GivenTokens(self.given.ordered(order))

    def _attention(self, asked: str) -> Tensor:
        self._require(Signal.ATTENTION, asked)
        if self.given.attention is None:
            raise ValueError(f"the policy read seq.{asked}: give make_view() an attention")
        return self.given.attention

    def _keys(self, asked: str) -> tuple[Tensor, ...]:
        self._require(Signal.KEYS, asked)
        if not self.given.keys:
            raise ValueError(f"the policy read seq.{asked}: give make_view() keys")
        return self.given.keys

    def _require(self, signal: Signal, asked: str) -> None:
        policy = self.given.policy
        if signal not in policy.signals:
            raise PolicyError(
                f"policy {policy.name!r} read seq.{asked} but does not declare the signal"
            )


def scores(view: GivenTokens) -> Tensor:
    """What the policy scores, float32 ``[num_live]`` in the order of the view.

    The policy works on a copy of the view, so calls do not influence each other.

    Raises:
        TypeError: If the policy gives no scores.
    """
    policy = view.given.policy
    if not isinstance(policy, ScoringPolicy):
        raise TypeError(f"policy {policy.name!r} selects, it does not score; ask for victims()")
    view = GivenTokens(view.given)
    policy.observe(view)
    return policy.score(view)


def victims(view: GivenTokens, count: int) -> list[int]:
    """The tokens that leave, as sorted token ids; the policy works on a copy of the view."""
    policy = view.given.policy
    if isinstance(policy, ScoringPolicy):
        places = lowest(scores(view), view, [count])[0]
    else:
        view = GivenTokens(view.given)
        policy.observe(view)
        places = policy.select(view, count)
    return sorted(view.token_ids[places].tolist())
