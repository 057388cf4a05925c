"""Small tensor helpers shared by the table, the planner and the runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def ceil_div(a: int, b: int) -> int:
    """The quotient rounded up."""
    return -(-a // b)


def upload(values: Sequence[int], device: torch.device) -> Tensor:
    """Host integers to an int64 tensor ``[len(values)]``, without waiting for the device."""
    return to_device(torch.tensor(values, dtype=torch.int64), device)


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """A host tensor on the engine's device, without waiting for it."""
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)


class Ragged(NamedTuple):
    """Addresses of sequences joined end to end.

    Attributes:
        segment: Which sequence each entry belongs to, int64 ``[sum(lengths)]``.
        offset: Its index within that sequence, int64 ``[sum(lengths)]``.
    """

    segment: Tensor
    offset: Tensor


def ragged(lengths: Sequence[int], device: torch.device) -> Ragged:
    """Address every entry of sequences of the given lengths; sizes are host-known, so no sync."""
    if len(set(lengths)) == 1:  # as usual where all sequences have the same budget
        count, size = len(lengths), lengths[0]
        segment = torch.arange(count, device=device)[:, None].expand(count, size)
        return Ragged(segment.flatten(), torch.arange(size, device=device).repeat(count))
    total = sum(lengths)
    sizes = upload(lengths, device)
    segment = torch.repeat_interleave(sizes, output_size=total)
    starts = sizes.cumsum(0) - sizes
    return Ragged(segment, torch.arange(total, device=device) - starts[segment])
