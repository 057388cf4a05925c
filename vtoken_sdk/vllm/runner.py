"""The worker half that both model runners share: carry out the cuts of a step."""

from __future__ import annotations

from copy import copy
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, AsyncModelRunnerOutput, ModelRunnerOutput

from vtoken_sdk.config import Variant, VTokenConfig
from vtoken_sdk.cut import CutResult, SequenceCut
from vtoken_sdk.recorder import Step
from vtoken_sdk.registry import make_policy
from vtoken_sdk.relocate import Relocator
from vtoken_sdk.runtime import VTokenRuntime
from vtoken_sdk.tensors import ceil_div, upload
from vtoken_sdk.view import Moment
from vtoken_sdk.vllm.directive import Cut, HeldBlocks, StepDirective, StepReport, external_id
from vtoken_sdk.vllm.layout import find_layout
from vtoken_sdk.vllm.mixin import Mixin
from vtoken_sdk.vllm.ranks import tensor_parallel_ranks
from vtoken_sdk.vllm.signals import SignalTaps
from vtoken_sdk.vllm.trace import EvictionTrace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from vtoken_sdk.metrics import MetricsSnapshot
    from vtoken_sdk.relocate import KVLayout

FETCH_SECONDS = 5.0
"""How often the number of moved tokens is fetched from the device, where it is published."""


class CutRunner(Mixin):
    """Mixed into a model runner of vLLM; the subclasses know where it keeps block tables.

    Attributes:
        directive: What the scheduler said about the current step.
    """

    directive: StepDirective

    def start_vtoken(self, config: VTokenConfig, block_size: int, is_driver: bool) -> None:
        """Set up, once the KV cache exists."""
        self.config = config
        self.directive = StepDirective()
        self.layout: KVLayout = find_layout(self)
        self.relocator = Relocator(self.layout, config.relocation)
        policy = make_policy(config.policy, config.policy_args) if config.evicts else None
        ranks = tensor_parallel_ranks(self.vllm_config)
        self.taps = SignalTaps(self, policy, ranks)
        self.runtime = VTokenRuntime(
            policy,
            block_size,
            self.device,
            self.taps.source,
            strict=config.strict,
            check_invariants=config.check_invariants,
            ranks=ranks,
        )
        self.runtime.metrics.count_moves = True
        self.trace = EvictionTrace(config.trace) if config.trace and is_driver else None
        self._report: StepReport | None = None
        self._next_fetch = 0.0

    # -- cuts ---------------------------------------------------------------------------------

    def apply_cuts(self) -> None:
        """Carry out the cuts of the current step; the host waits for nothing."""
        cuts = self.directive.cuts
        self._report = None
        self.runtime.faults.collect()
        if not cuts:
            return
        self.relocator.wait_before_read()  # of a step in which nothing was computed
        tables = with_fresh_blocks(self.cut_tables(cuts), cuts)
        result = self.runtime.cut([_sequence(cut) for cut in cuts], tables, self.relocator)
        for cut in cuts:
            self.update_row(cut)
        held: tuple[HeldBlocks, ...] = ()
        if self.config.variant is Variant.NAIVE:
            held = held_blocks(cuts, result, self.runtime.block_size)
        metrics = self._metrics() if self.config.publish_metrics else None
        self._report = StepReport(len(cuts), held, metrics)
        if self.trace:
            self.trace.write(cuts, result, self.config.variant)

    def _metrics(self) -> MetricsSnapshot:
        """All counters; moved tokens are fetched from the device now and then only: it waits."""
        now = monotonic()
        fetch = now >= self._next_fetch
        if fetch:
            self._next_fetch = now + FETCH_SECONDS
        return self.runtime.metrics.snapshot(moved=fetch)

    def settle_copies(self, scheduler_output: Any) -> None:
        """Before vLLM zeroes or copies blocks of this step, which cuts may have let go."""
        if scheduler_output.new_block_ids_to_zero or scheduler_output.kv_cache_block_copies:
            self.relocator.wait_before_read()

    def forget(self, req_ids: Iterable[str]) -> None:
        """Drop the state of requests that finished or lost their blocks."""
        for req_id in req_ids:
            self.runtime.forget(req_id)

    def cut_tables(self, cuts: Sequence[Cut]) -> Tensor:
        """Block ids of the sequences before their cut, int64 ``[R, blocks]``."""
        raise NotImplementedError

    def update_row(self, cut: Cut) -> None:
        """Take the blocks that left out of a sequence's block table."""
        raise NotImplementedError

    # -- inputs -------------------------------------------------------------------------------

    def removed_of(self, req_ids: Sequence[str]) -> list[int] | None:
        """Tokens evicted so far per scheduled request, or None where there are none at all."""
        removed = self.directive.removed
        return [removed.get(req_id, 0) for req_id in req_ids] if removed else None

    def announce(
        self, req_ids: Sequence[str], queries: Sequence[int], lengths: Sequence[int], tables: Tensor
    ) -> None:
        """The model is about to compute: copies end first, and taps learn of which sequences.

        Args:
            req_ids: The requests, in batch order.
            queries: Tokens computed in this step.
            lengths: Dense lengths, those tokens included.
            tables: Block ids, ``[>= requests, blocks]``.
        """
        self.relocator.wait_before_read()
        if self.taps.active:
            rows = [self.runtime.table.row(req_id) for req_id in req_ids]
            self.taps.begin(Step(rows, list(queries), list(lengths), tables))

    # -- outputs ------------------------------------------------------------------------------

    def with_report(self, output: Any) -> Any:
        """Attach the report of this step to what the runner returns."""
        if self._report is None or output is None:
            return output
        report, self._report = self._report, None
        if isinstance(output, AsyncModelRunnerOutput):
            return _ReportingOutput(output, report)
        return _attach(output, report)


class _ReportingOutput(AsyncModelRunnerOutput):
    """An output still on the device, with a report that is already here."""

    def __init__(self, output: AsyncModelRunnerOutput, report: StepReport) -> None:
        self._output, self._report = output, report

    def get_output(self) -> ModelRunnerOutput:
        return _attach(self._output.get_output(), self._report)


def _attach(output: ModelRunnerOutput, report: StepReport) -> ModelRunnerOutput:
    """The empty output is a shared singleton, so it is copied before it is written to."""
    if output is EMPTY_MODEL_RUNNER_OUTPUT:
        output = copy(output)
    output.vtoken = report
    return output


def with_fresh_blocks(tables: Tensor, cuts: Sequence[Cut]) -> Tensor:
    """Write the blocks that cuts take behind those that hold live tokens.

    Args:
        tables: Block ids before the cuts, int64 ``[R, blocks]``.
        cuts: One per row.

    Returns:
        The same, wide enough for the longest.
    """
    at = [(row, cut.held + i, b) for row, cut in enumerate(cuts) for i, b in enumerate(cut.fresh)]
    if not at:
        return tables
    rows, columns, blocks = (upload(values, tables.device) for values in zip(*at, strict=True))
    width = max(column for _, column, _ in at) + 1
    wide = torch.nn.functional.pad(tables, (0, max(width - tables.shape[1], 0)))
    wide[rows, columns] = blocks
    return wide


def held_blocks(cuts: Sequence[Cut], result: CutResult, size: int) -> tuple[HeldBlocks, ...]:
    """Count the blocks PagedAttention would hold: distinct ``token_id // S`` over live tokens.

    This waits for the device; only the variant ``naive`` needs it.
    """
    lengths = upload(result.plan.new_lengths, result.live.device)
    filler = torch.arange(result.live.shape[1], device=result.live.device)[None] >= lengths[:, None]
    homes = (result.live // size).masked_fill(filler, -1).sort(dim=1).values
    new = (homes[:, 1:] != homes[:, :-1]).sum(1) + 1 - filler.any(1).long()
    last = homes.max(dim=1).values
    return tuple(
        HeldBlocks(cut.req_id, cut.length, held, tail == ceil_div(cut.length, size) - 1)
        for cut, held, tail in zip(cuts, new.tolist(), last.tolist(), strict=True)
    )


def _sequence(cut: Cut) -> SequenceCut:
    moment = Moment(cut.length, cut.key, cut.number)
    return SequenceCut(
        cut.req_id, cut.count, moment, cut.leave, len(cut.fresh), external_id(cut.req_id)
    )
