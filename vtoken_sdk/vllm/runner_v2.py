"""Seams of model runner V2 (``vllm.v1.worker.gpu.model_runner``), also on CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vtoken_sdk.tensors import upload
from vtoken_sdk.vllm.runner import CutRunner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from vtoken_sdk.vllm.directive import Cut


class V2Runner(CutRunner):
    """Cuts before requests are updated, dense lengths while attention is prepared and runs."""

    _shortened: tuple[Any, Tensor] | None = None

    def update_requests(self, scheduler_output: Any) -> None:
        """Cuts come first: before new blocks are appended, zeroed or copied."""
        self.forget(scheduler_output.finished_req_ids)
        self.forget(scheduler_output.preempted_req_ids or ())
        self.apply_cuts()
        self.settle_copies(scheduler_output)
        super().update_requests(scheduler_output)

    def prepare_attn(self, input_batch: Any) -> Any:
        """Attention sees dense lengths and slots; positions for RoPE stay as they are."""
        result = self._prepare_dense(input_batch)
        count = len(input_batch.req_ids)
        self.announce(
            input_batch.req_ids,
            np.diff(input_batch.query_start_loc_np[: count + 1]).tolist(),
            input_batch.seq_lens_cpu_upper_bound[:count].tolist(),
            result[0][0],
        )
        return result

    def _prepare_dense(self, input_batch: Any) -> Any:
        removed = self.removed_of(input_batch.req_ids)
        if removed is None:
            return super().prepare_attn(input_batch)
        gone = upload(removed, self.runtime.device)
        self._shift_lengths(input_batch, -gone)
        self._shortened = (input_batch, gone)
        positions = input_batch.positions
        input_batch.positions = self.dense_indices(input_batch, removed)
        try:
            return super().prepare_attn(input_batch)
        finally:
            input_batch.positions = positions

    def dense_indices(self, input_batch: Any, removed: Sequence[int]) -> Tensor:
        """Where the step's tokens go in their dense vectors, padded like the positions."""
        queries = np.diff(input_batch.query_start_loc_np[: len(removed) + 1])
        shift = upload(np.repeat(removed, queries).tolist(), self.runtime.device)
        indices: Tensor = input_batch.positions.clone()
        indices[: len(shift)] -= shift
        return indices

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        """Sampling compares lengths with the prompt's, so it gets logical ones back."""
        try:
            return super().execute_model(*args, **kwargs)
        finally:
            if self._shortened:
                self._shift_lengths(*self._shortened)
                self._shortened = None

    def _shift_lengths(self, input_batch: Any, by: Tensor) -> None:
        """In place, because captured graphs read these very buffers."""
        input_batch.seq_lens[: len(by)] += by.to(input_batch.seq_lens.dtype)
        bound = input_batch.seq_lens_cpu_upper_bound
        bound[: len(by)] += by.to(bound.device, bound.dtype)

    def cut_tables(self, cuts: Sequence[Cut]) -> Tensor:
        """Block ids of the sequences before their cut, int64 ``[R, blocks]``."""
        rows = [self.req_states.req_id_to_index[cut.req_id] for cut in cuts]
        width = int(self.block_tables.num_blocks.np[0, rows].max())
        table: Tensor = self.block_tables.block_tables[0].gpu
        return table[upload(rows, self.runtime.device), :width].long()

    def update_row(self, cut: Cut) -> None:
        """Lower the row's block count, or write it anew; new blocks are appended behind it."""
        row = self.req_states.req_id_to_index[cut.req_id]
        if cut.table is None:
            self.block_tables.num_blocks.np[0, row] -= cut.freed_blocks
        else:
            self.block_tables.append_block_ids(row, (list(cut.table),), overwrite=True)
