"""Copies of KV that finish later, in any order, as they may on a stream of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vtoken_sdk.errors import InvariantViolation
from vtoken_sdk.invariants import content_hash
from vtoken_sdk.relocate import copy_kv, gather_kv

if TYPE_CHECKING:
    from torch import Tensor

    from vtoken_sdk.relocate import KVLayout


@dataclass(frozen=True, slots=True, eq=False)
class PendingCopy:
    """A copy that was started and has not finished.

    Attributes:
        sources: Slots, int64 ``[moves]``.
        destinations: Slots, int64 ``[moves]``, distinct.
        hashes: Content of the sources when the copy was started, int64 ``[moves]``.
    """

    sources: Tensor
    destinations: Tensor
    hashes: Tensor

    def touches(self, slots: Tensor) -> bool:
        """Whether the copy still reads or writes one of the slots."""
        return bool(torch.isin(torch.cat([self.sources, self.destinations]), slots).any())


class CopyQueue:
    """Copies in flight. Every finished one is checked, token by token, against its sources.

    Args:
        layout: The cache they work on.

    Attributes:
        pending: Copies that have not finished, oldest first.
    """

    def __init__(self, layout: KVLayout) -> None:
        self._layout = layout
        self.pending: list[PendingCopy] = []

    def start(self, sources: Tensor, destinations: Tensor) -> PendingCopy:
        """Start a copy; earlier ones that touch its slots finish first, as in stream order.

        Args:
            sources: Slots, int64 ``[moves]``.
            destinations: Slots, int64 ``[moves]``.
        """
        self.finish(torch.cat([sources, destinations]))
        hashes = content_hash(gather_kv(self._layout, sources))
        copy = PendingCopy(sources, destinations, hashes)
        self.pending.append(copy)
        return copy

    def complete(self, index: int = 0) -> None:
        """Let one copy finish.

        Raises:
            InvariantViolation: If what arrived is not what was to be copied.
        """
        copy = self.pending.pop(index)
        copy_kv(self._layout, copy.sources, copy.destinations)
        arrived = content_hash(gather_kv(self._layout, copy.destinations))
        wrong = copy.destinations[arrived != copy.hashes]
        if wrong.numel():
            raise InvariantViolation(
                f"content: slots {wrong.tolist()} do not hold what was copied to them; their "
                "sources were overwritten before the copy, or several copies end there"
            )

    def finish(self, slots: Tensor | None = None) -> None:
        """Let copies finish: those that touch ``slots``, or all."""
        for copy in list(self.pending):
            if slots is None or copy.touches(slots):
                self.complete(self.pending.index(copy))
