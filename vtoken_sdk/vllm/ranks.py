"""vLLM's tensor-parallel group, as the runtime sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

if TYPE_CHECKING:
    from torch import Tensor


class TensorParallelRanks:
    """The group over ``torch.distributed``, in stream order: the host waits for nothing.

    Args:
        group: vLLM's ``GroupCoordinator``.
        replicas: Ranks that hold a copy of the same KV heads.
    """

    def __init__(self, group: Any, replicas: int) -> None:
        self._group, self._size, self._root = group.device_group, group.world_size, group.ranks[0]
        self.replicas = replicas

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, in order of rank."""
        parts = [
            torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            for _ in range(self._size)
        ]
        distributed.all_gather(parts, tensor.contiguous(), group=self._group)
        return parts

    def first(self, tensor: Tensor) -> Tensor:
        """The first rank's tensor."""
        own = tensor.contiguous().clone()
        distributed.broadcast(own, src=self._root, group=self._group)
        return own


def tensor_parallel_ranks(vllm_config: Any) -> TensorParallelRanks | None:
    """The group this process belongs to; None where it is alone."""
    size = vllm_config.parallel_config.tensor_parallel_size
    if size == 1:
        return None
    from vllm.distributed import get_tp_group

    heads = vllm_config.model_config.get_total_num_kv_heads()
    return TensorParallelRanks(get_tp_group(), replicas=max(size // heads, 1))
