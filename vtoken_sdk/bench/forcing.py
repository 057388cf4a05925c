"""Makes a running engine write a given text, and notes what it would rather have written.

Log probabilities of a prompt say nothing about eviction: a prompt is read before its first cut. So
the text is *generated*: a logits processor leaves vLLM no other token to choose. The log
probabilities vLLM reports are those from before the processor (``logprobs_mode=raw_logprobs``, its
default). Works in the process of the engine only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

LIKELIEST = 64
"""Tokens that distributions are compared on; all others count as one."""


@dataclass(slots=True)
class Forced:
    """One text to be written, and what was seen on the way.

    Attributes:
        ids: The tokens.
        watched: Token ids looked at, per position ``[len(ids), LIKELIEST]`` int64; None looks at
            the likeliest.
        reference: Log probabilities of those elsewhere ``[len(ids), LIKELIEST]`` float32.
        seen: Per position the ids looked at and their log probabilities, int64 and float32
            ``[LIKELIEST]``.
    """

    ids: list[int]
    watched: Tensor | None = None
    reference: Tensor | None = None
    seen: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def force(self, output_ids: list[int], logits: Tensor) -> Tensor:
        """Logits ``[vocabulary]`` that leave one token."""
        position = len(output_ids)
        if position >= len(self.ids):  # a step ahead of the last token, where steps overlap
            return logits
        self._look(position, logits.log_softmax(-1, dtype=torch.float32))
        forced = torch.full_like(logits, float("-inf"))
        forced[self.ids[position]] = 0
        return forced

    def _look(self, position: int, logprobs: Tensor) -> None:
        if self.watched is None:
            values, ids = logprobs.topk(min(LIKELIEST, len(logprobs)))
        else:
            ids = self.watched[position].to(logprobs.device)
            values = logprobs[ids]
        self.seen[position] = ids.cpu(), values.cpu()  # a position computed again replaces itself

    def stacked(self) -> tuple[Tensor, Tensor]:
        """Ids and log probabilities ``[len(ids), LIKELIEST]``."""
        ids, values = zip(*(self.seen[i] for i in range(len(self.ids))), strict=True)
        return torch.stack(ids), torch.stack(values)


def divergence(reference: Tensor, other: Tensor) -> Tensor:
    """Kullback-Leibler divergence from a reference, over some tokens and all others as one.

    Args:
        reference: Log probabilities of the tokens ``[positions, tokens]``.
        other: Those of the same tokens elsewhere.

    Returns:
        Nats per position, float64 ``[positions]``: never more than over the whole vocabulary.
    """
    p, q = reference.double(), other.double()
    rest_p, rest_q = _rest(p), _rest(q)
    return (p.exp() * (p - q)).sum(-1) + rest_p * (rest_p.log() - rest_q.log())


def _rest(logprobs: Tensor) -> Tensor:
    return (1 - logprobs.exp().sum(-1)).clamp_min(1e-12)
