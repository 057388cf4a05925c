"""What the ranks of a tensor-parallel group have to agree on: every rank evicts the same tokens.

Each rank holds some of the attention heads. At a cut, and only there, what the policy looks at is
put together from all of them, and the first rank's victims count for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from vtoken_sdk.errors import InvariantViolation

if TYPE_CHECKING:
    from torch import Tensor


class Ranks(Protocol):
    """The ranks of a group; every rank makes the same calls in the same order.

    Attributes:
        replicas: Ranks that hold a copy of the same KV heads; 1 where each has its own.
    """

    replicas: int

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, in order of rank; equal shapes and dtypes."""

    def first(self, tensor: Tensor) -> Tensor:
        """The first rank's tensor; equal shapes and dtypes."""


def mean(ranks: Ranks, tensor: Tensor) -> Tensor:
    """The mean over ranks, added up in one order, so every rank gets the same bits."""
    first, *rest = ranks.gather(tensor)
    total = first.clone()
    for other in rest:
        total += other
    return total / (1 + len(rest))


def all_heads(ranks: Ranks, tensor: Tensor, dim: int) -> Tensor:
    """KV heads of all ranks in the model's order, along ``dim``; copies are left out."""
    return torch.cat(ranks.gather(tensor)[:: ranks.replicas], dim=dim)


def check_same(ranks: Ranks, what: str, tensor: Tensor) -> None:
    """See that a tensor is the same on every rank; waits for the device.

    Args:
        ranks: The group.
        what: What the tensor holds, for the message.
        tensor: Integers, ``[n]``; the same ``n`` everywhere.

    Raises:
        InvariantViolation: On every rank, naming those that differ from the first.
    """
    first, *rest = ranks.gather(tensor)
    other = [rank for rank, found in enumerate(rest, start=1) if not torch.equal(first, found)]
    if other:
        raise InvariantViolation(
            f"ranks: {what} on rank {', '.join(map(str, other))} are not those on rank 0"
        )
