"""What policies share: looking at some of the layers, and at tokens in the order of the text.

The tokens of a view stand in no particular order, and floating-point sums depend on order. So
whatever looks from one token to another (pooling, means, similarities) first sorts by position: the
same tokens then get the same scores, bit for bit, wherever they sit in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vtoken_sdk.policy import ScoringPolicy, param

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from vtoken_sdk.policy import SequenceView

_CHUNK = 64
"""Rows of a similarity matrix that are held at once. Measured 1.6 times as fast as 512 with 4,000
tokens, whose rows leave the CPU's cache."""


@dataclass
class LayeredPolicy(ScoringPolicy):
    """A scoring policy that looks at every n-th layer instead of all of them.

    All layers and heads of a sequence keep the same tokens, so what they say is averaged. Each
    layer that is looked at costs time.

    Args:
        every_layer: Look at every n-th layer: 4 means the 4th, the 8th and so on, 1 all of them.
    """

    every_layer: int = param(4, least=1)

    def scored_layers(self, num_layers: int) -> range:
        """Every n-th layer, and the last one where there are fewer than n."""
        return range(min(self.every_layer, num_layers) - 1, num_layers, self.every_layer)

    def rate_keys(
        self,
        seq: SequenceView,
        rate: Callable[[Tensor], Tensor],
        order: Tensor | None = None,
    ) -> Tensor:
        """Rate keys layer by layer, and average over KV heads and the scored layers.

        Args:
            seq: The live tokens; the policy declares ``Signal.KEYS``.
            rate: From float32 ``[num_live, kv_heads, head_size]`` to ``[num_live, kv_heads]``.
            order: What :func:`text_order` returned, where ``rate`` looks from one token to another:
                it is then handed the keys in the order of the text.

        Returns:
            float32 ``[num_live]``, in the order of the view.
        """
        layers = self.scored_layers(seq.num_layers)
        total = seq.token_ids.new_zeros(seq.num_live).float()
        for layer in layers:
            keys = seq.keys(layer)
            total += rate((keys if order is None else keys[order]).float()).mean(1)
        total /= len(layers)
        return total if order is None else in_view_order(total, order)


@dataclass
class WindowedPolicy(LayeredPolicy):
    """A policy that rates tokens by the attention of the last queries only.

    Args:
        window: Last queries whose attention counts.

    Attributes:
        keeps_window: Whether the tokens of the window are pinned, as ``recent`` tokens are.
    """

    keeps_window: ClassVar[bool] = False

    window: int = param(32, least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keeps_window:
            self.recent = max(self.recent, self.window)

    def attention_window(self) -> int:
        """The window."""
        return self.window

    def attention_before_window(self, seq: SequenceView, order: Tensor) -> Tensor:
        """Attention of the last queries, 0 for their own tokens.

        Args:
            seq: One sequence.
            order: What :func:`text_order` returned.

        Returns:
            float32 ``[window, num_live]``, in the order of the text.
        """
        return seq.attention.masked_fill(seq.recent(self.window), 0)[:, order]


def text_order(seq: SequenceView) -> Tensor:
    """Places in the view by position in the text, int64 ``[num_live]``; one sequence only."""
    return seq.token_ids.argsort()


def in_view_order(values: Tensor, order: Tensor) -> Tensor:
    """Undo ``values[order]``."""
    return values.new_empty(values.shape).index_copy_(0, order, values)


def mean_pool(values: Tensor, width: int) -> Tensor:
    """Average over neighbours, with zeros beyond the ends (``avg_pool1d``).

    Args:
        values: float32 ``[num_live]`` in the order of the text, so neighbours of a token are the
            live tokens before and after it.
        width: Tokens averaged, itself included; an even width reaches one further back.
    """
    from torch.nn.functional import avg_pool1d

    return avg_pool1d(values[None], width, 1, width // 2)[0, : len(values)]


def max_pool(values: Tensor, width: int) -> Tensor:
    """The largest among neighbours; arguments as for :func:`mean_pool`."""
    from torch.nn.functional import max_pool1d

    return max_pool1d(values[None], width, 1, width // 2)[0, : len(values)]


def hits_above(rows: Tensor, quantile: float) -> Tensor:
    """In how many rows of attention a token is above that quantile of the row.

    Args:
        rows: float32 ``[w, num_live]`` of one sequence.
        quantile: Share of the tokens that lie below the threshold, in [0, 1).

    Returns:
        int64 ``[num_live]``.
    """
    place = int(quantile * rows.shape[1]) + 1
    threshold: Tensor = rows.kthvalue(place, 1, keepdim=True).values
    return (rows > threshold).sum(0)


def misses_of_uniform(seq: SequenceView) -> Tensor:
    """How many of the last queries gave a token less than one over the tokens they could see.

    Args:
        seq: One sequence, of a policy with an ``attention_window()``.

    Returns:
        int64 ``[num_live]``; queries from before a token do not count.
    """
    rows = seq.attention
    back = seq.query_count.new_tensor(range(rows.shape[0] - 1, -1, -1))[:, None]
    visible = back < seq.query_count
    return (visible & (rows < 1 / visible.sum(1, keepdim=True))).sum(0)


def shares(rows: Tensor) -> Tensor:
    """Scale rows to sum 1; rows of zeros stay so."""
    return rows / rows.sum(-1, keepdim=True).clamp_min(1e-12)


def unit(keys: Tensor) -> Tensor:
    """Scale vectors in the last dimension to length 1."""
    lengths: Tensor = keys.norm(dim=-1, keepdim=True)
    return keys / lengths.clamp_min(1e-8)


def redundancy(keys: Tensor, threshold: float = 0.5) -> Tensor:
    """How much each key resembles the others of its head, as R-KV counts it.

    Every key compares itself with all others, itself left out, and forgives the last one in the
    text that is more similar than ``threshold``: of tokens that say the same, the newest stays. A
    key that resembles nobody forgives the first one instead, as in the official code.

    Takes quadratic time, but memory for ``_CHUNK`` rows of similarities only.

    Args:
        keys: float32 ``[num_live, kv_heads, head_size]``, in the order of the text.
        threshold: Cosine above which two keys are similar.

    Returns:
        Softmax over the tokens of the mean cosine, float32 ``[num_live, kv_heads]``.
    """
    import torch

    units = unit(keys).transpose(0, 1)  # [kv_heads, num_live, head_size]
    num_live = units.shape[1]
    place = torch.arange(num_live, device=keys.device)
    total = units.new_zeros(units.shape[:2])
    for rows in torch.split(place, _CHUNK):
        cosine = units[:, rows] @ units.transpose(1, 2)
        cosine.masked_fill_(rows[:, None] == place, 0.0)
        forgiven = torch.where(cosine > threshold, place, 0).amax(-1, keepdim=True)
        total += cosine.scatter_(-1, forgiven, 0.0).sum(1)
    return (total / num_live).softmax(-1).T
