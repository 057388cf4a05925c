"""A toy transformer whose answers depend on which tokens are live, never on where they sit.

Keys carry the rotation of their position in the text (RoPE), and so keep it wherever they move.
Weights come from a seed and everything is float64, so two ways of computing one answer agree to
many digits. :func:`dense_logits` is the second way: no blocks, no cache, only a mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
    """From layer, queries, keys, values (``[tokens, heads, dim]``) to attention output."""


class ToyModel:
    """A decoder-only transformer small enough to run thousands of times per second.

    Args:
        layers: Number of layers.
        heads: Attention heads.
        head_dim: Elements per head; even.
        vocab: Number of distinct tokens.
        seed: Seed of the weights.
    """

    dtype = torch.float64

    def __init__(
        self, layers: int = 2, heads: int = 2, head_dim: int = 4, vocab: int = 32, seed: int = 0
    ) -> None:
        self.layers, self.heads, self.head_dim, self.vocab = layers, heads, head_dim, vocab
        width = heads * head_dim
        generator = torch.Generator().manual_seed(seed)

        def weights(*shape: int) -> Tensor:
            scale = shape[-2] ** -0.5 if len(shape) > 1 else 1.0
            return torch.randn(shape, generator=generator, dtype=self.dtype) * scale

        self._embedding, self._head = weights(vocab, width) * vocab**0.5, weights(width, vocab)
        self._qkv = weights(layers, width, 3 * width) * 2.0
        self._out = weights(layers, width, width)
        self._up, self._down = weights(layers, width, 2 * width), weights(layers, 2 * width, width)
        steps = torch.arange(head_dim // 2, dtype=self.dtype)
        self._frequencies = 100.0 ** (-2 * steps / head_dim)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Compute tokens of one text.

        Args:
            tokens: int64 ``[tokens]``.
            positions: Their places in the text, int64 ``[tokens]``.
            attend: Computes attention, with whatever cache it has; called once per layer in order.

        Returns:
            Logits, float64 ``[tokens, vocab]``.
        """
        x = self._embedding[tokens]
        for layer in range(self.layers):
            q, k, v = (_normed(x) @ self._qkv[layer]).chunk(3, dim=1)
            q, k = (
                self._rotated(self._split(q), positions),
                self._rotated(self._split(k), positions),
            )
            x = x + attend(layer, q, k, self._split(v)).flatten(1) @ self._out[layer]
            x = x + torch.tanh(_normed(x) @ self._up[layer]) @ self._down[layer]
        logits: Tensor = _normed(x) @ self._head
        return logits

    def _split(self, x: Tensor) -> Tensor:
        return x.view(-1, self.heads, self.head_dim)

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        angle = positions[:, None, None] * self._frequencies
        cos, sin = angle.cos(), angle.sin()
        one, two = x.chunk(2, dim=-1)
        return torch.cat([one * cos - two * sin, one * sin + two * cos], dim=-1)


def attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """Softmax attention.

    Args:
        q: ``[queries, heads, dim]``.
        k: ``[keys, heads, dim]``, in any order.
        v: ``[keys, heads, dim]``, in the order of the keys.
        visible: Which keys a query sees, bool ``[queries, keys]``.

    Returns:
        ``[queries, heads, dim]``.
    """
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


def dense_logits(
    model: ToyModel, text: Sequence[int], evicted_at: Mapping[int, int] | None = None
) -> Tensor:
    """The oracle: the whole text at once, evicted tokens masked from the queries that miss them.

    Args:
        model: The model.
        text: All tokens computed so far.
        evicted_at: By token id, how many tokens had been computed when it was evicted: queries at
            that position and behind do not see it.

    Returns:
        Logits, float64 ``[len(text), vocab]``.
    """
    position = torch.arange(len(text))
    until = torch.full((len(text),), len(text))
    for token, moment in (evicted_at or {}).items():
        until[token] = moment
    visible = (position <= position[:, None]) & (position[:, None] < until)
    return model.forward(
        torch.tensor(text), position, lambda _, q, k, v: attention(q, k, v, visible)
    )


def _normed(x: Tensor) -> Tensor:
    return x / (x.square().mean(dim=1, keepdim=True) + 1e-6).sqrt()
