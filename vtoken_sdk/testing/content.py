"""What a text says, without a model: attention, keys and random numbers that follow from its key.

Everything is addressed by token, never by place in memory, so a token brings the same facts along
wherever it lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

NUM_LAYERS = 2
KV_HEADS = 2
HEAD_SIZE = 8


@dataclass(frozen=True, slots=True)
class Point:
    """An eviction point of a text.

    Attributes:
        number: Cuts before this one.
        before: Tokens that had been computed at the point before.
        length: Tokens computed by now.
    """

    number: int
    before: int
    length: int

    def query_count(self) -> Tensor:
        """Queries since the last point that could see each token, int64 ``[length]``."""
        age = self.length - 1 - torch.arange(self.length)
        return (age + 1).clamp(max=self.length - self.before)


@dataclass(frozen=True, slots=True)
class MadeUp:
    """Numbers that follow from a key.

    Attributes:
        key: Texts of one key are equal.
        total: Tokens of the whole text: a generator gives other numbers for other sizes.
    """

    key: int
    total: int
    num_layers: int = NUM_LAYERS

    def attention(self, point: Point, window: int | None) -> Tensor:
        """Skewed as real attention is: few tokens get most of it."""
        weights = self._uniform(1, point.number, point.length) ** 4
        if window is None:
            return weights * point.query_count()
        query = torch.arange(point.length - window, point.length)[:, None]
        seen = (torch.arange(point.length) <= query) & (query >= point.before)
        return torch.where(seen, weights * (1 + query % 3), 0.0)

    def keys(self, point: Point, layer: int) -> Tensor:
        """Normally distributed; those of a token stay what they are."""
        generator = self._generator(2, layer)
        shape = (self.total, KV_HEADS, HEAD_SIZE)
        keys = torch.randn(shape, generator=generator, dtype=torch.float32)
        return keys[: point.length]

    def random(self, point: Point) -> Tensor:
        """Uniform, others at each eviction."""
        return self._uniform(3, point.number, point.length)

    def _uniform(self, what: int, number: int, size: int) -> Tensor:
        generator = self._generator(what, number)
        return torch.rand(size, generator=generator, dtype=torch.float32)

    def _generator(self, what: int, number: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.key * 10_007 + number * 101 + what)
