"""Seams of model runner V1 (``vllm.v1.worker.gpu_model_runner``), also on CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vtoken_sdk.vllm.generators import mark_generators
from vtoken_sdk.vllm.runner import CutRunner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from vtoken_sdk.vllm.directive import Cut


class V1Runner(CutRunner):
    """Cuts before the persistent batch is updated, dense lengths once its inputs are prepared."""

    def _update_states(self, scheduler_output: Any) -> Any:
        """Cuts come first: before zeroing, block copies and new rows."""
        self.forget(scheduler_output.finished_req_ids)
        self.forget(scheduler_output.preempted_req_ids or ())
        self.forget(scheduler_output.scheduled_cached_reqs.resumed_req_ids)
        self.apply_cuts()
        self.settle_copies(scheduler_output)
        result = super()._update_states(scheduler_output)
        if self.device.type == "cpu":
            mark_generators(self.input_batch, self.requests)
        return result

    def _prepare_inputs(self, scheduler_output: Any, num_scheduled_tokens: np.ndarray) -> Any:
        """Attention sees dense lengths and slots; RoPE and sampling keep logical ones."""
        result = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)
        removed = self.removed_of(self.input_batch.req_ids)
        if removed is not None:
            gone = np.array(removed, dtype=np.int32)
            self.shorten_lengths(gone)
            self.shift_slot_mapping(gone, num_scheduled_tokens)
        count = len(num_scheduled_tokens)
        self.announce(
            self.input_batch.req_ids,
            num_scheduled_tokens.tolist(),
            self.optimistic_seq_lens_cpu[:count].tolist(),
            self.input_batch.block_table[0].get_device_tensor(count),
        )
        return result

    def shorten_lengths(self, removed: np.ndarray) -> None:
        """Subtract what was evicted, ``[num_reqs]``, on the device and in the host's bound.

        The host's copy had to be logical until here: it decides which samples are discarded.
        """
        host = torch.from_numpy(removed)
        self.seq_lens[: len(host)] -= self._to_device(host)
        self.optimistic_seq_lens_cpu[: len(host)] -= host

    def shift_slot_mapping(self, removed: np.ndarray, num_scheduled_tokens: np.ndarray) -> None:
        """Compute the slots again, from dense indices instead of positions in the text."""
        shift = torch.from_numpy(np.repeat(removed, num_scheduled_tokens).astype(np.int64))
        indices = self.positions[: len(shift)] - self._to_device(shift)
        self.input_batch.block_table.compute_slot_mapping(
            len(removed), self.query_start_loc.gpu[: len(removed) + 1], indices
        )

    def _to_device(self, host: Tensor) -> Tensor:
        if self.device.type == "cpu":
            return host
        return host.pin_memory().to(self.device, non_blocking=True)

    def cut_tables(self, cuts: Sequence[Cut]) -> Tensor:
        """Block ids of the sequences before their cut, int64 ``[R, blocks]``."""
        rows = [self.requests[cut.req_id].block_ids[0] for cut in cuts]
        tables = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
        for table, row in zip(tables, rows, strict=True):
            table[: len(row)] = row
        return self._to_device(torch.from_numpy(tables))

    def update_row(self, cut: Cut) -> None:
        """Update vLLM's two records of a block table: the request's and the batch's."""
        ids: list[int] = self.requests[cut.req_id].block_ids[0]
        ids[:] = ids[: len(ids) - cut.freed_blocks] if cut.table is None else cut.table
        row = self.input_batch.req_id_to_index.get(cut.req_id)
        if row is not None:
            table = self.input_batch.block_table[0]
            table.clear_row(row)
            table.append_row(ids, row)
