"""The scheduler half: how many tokens leave, when, and which blocks go back.

Cuts are planned at the head of ``schedule()``, before vLLM looks at the pool, so their blocks can
be handed out in the same call. The workers carry them out at the start of that step.
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from vtoken_sdk.config import (
    Variant,
    VTokenConfig,
    When,
    check_budget,
    least_budget,
    read_config,
)
from vtoken_sdk.errors import ConfigError, PolicyError, VTokenError
from vtoken_sdk.reclaim import BudgetRule, PressureRule
from vtoken_sdk.registry import make_policy
from vtoken_sdk.selection import proper_hint
from vtoken_sdk.tensors import ceil_div
from vtoken_sdk.vllm.admission import AdmissionMixin
from vtoken_sdk.vllm.canary import check_manager
from vtoken_sdk.vllm.compat import check_kv_groups, check_worker_class
from vtoken_sdk.vllm.directive import Cut, HeldBlocks, StepDirective, StepReport
from vtoken_sdk.vllm.ending import leaves_word
from vtoken_sdk.vllm.kv_manager import DenseManager, NaiveManager, adopt
from vtoken_sdk.vllm.observe import occupancy
from vtoken_sdk.vllm.online_checks import check_blocks
from vtoken_sdk.vllm.overrides import Limits, requested_budget
from vtoken_sdk.vllm.pressure import PressureMixin
from vtoken_sdk.vllm.publish import Publisher
from vtoken_sdk.vllm.sharing import Sharer, worth_repacking

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    from vtoken_sdk.policy import Policy

logger = init_logger(__name__)


class VTokenMixin(AdmissionMixin, PressureMixin):
    """Adds cuts to one of vLLM's schedulers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = read_config(self.vllm_config.additional_config)
        assert config is not None
        self.vtoken = config
        check_worker_class(self.vllm_config)
        check_kv_groups(self.kv_cache_config)
        (manager,) = self.kv_cache_manager.coordinator.single_type_managers
        self.dense: DenseManager = adopt(manager, naive=config.variant is Variant.NAIVE)
        self.eviction_policy = make_policy(config.policy, config.policy_args)
        self.rule = _rule(config, self.eviction_policy, manager.block_size)
        self.limits = Limits(
            config.policy, config.budget, least_budget(self.eviction_policy, manager.block_size)
        )
        self.publisher = Publisher() if config.publish_metrics else None
        self._keys: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._reports: list[HeldBlocks] = []
        self._cuts: list[Cut] = []
        self._given: dict[str, tuple[int, int]] = {}  # in this step: (new blocks, new tokens)
        check_manager(self.dense)
        if config.variant is Variant.VTOKEN and self.rule:
            self.dense.admission = self._admission
        self.pressure = _pressure(config, manager.block_size)
        if self.pressure:
            self._allocate_slots = self.kv_cache_manager.allocate_slots
            self.kv_cache_manager.allocate_slots = self._allocate_or_cut

    # -- seams of vLLM's scheduler ------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Note what the request asks for beside the engine's settings."""
        request.vtoken_budget = self._budget_of(request)
        super().add_request(request)

    @leaves_word
    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Plan cuts, let vLLM schedule, and attach what the workers have to know."""
        if isinstance(self.dense, NaiveManager):
            for report in self._reports:
                self.dense.release(report)
            self._reports.clear()
        self._given.clear()
        self._cuts = self._plan_cuts() if self.rule else []
        output = super().schedule(*args, **kwargs)
        output.vtoken = self._directive(self._cuts, output)
        if self.publisher:
            self.publisher.count(output.vtoken.cuts)
        if self.vtoken.check_invariants:
            check_blocks(self.dense, {r.request_id: self._live(r) for r in self.running})
        return output

    def _reserve_prefill_lookahead(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        """No chunk crosses an eviction point, unless the whole request fits the budget."""
        rule = self._rule_of(request)
        if rule and self._end(request) > rule.budget:
            point = rule.next_point(request.num_prompt_tokens, num_computed_tokens)
            num_new_tokens = min(num_new_tokens, point - num_computed_tokens)
        clipped: int = super()._reserve_prefill_lookahead(
            request, num_computed_tokens, num_new_tokens
        )
        return clipped

    def _get_local_prefix_cache_hit(self, request: Request) -> Any:
        """No hit reaches the first cut: a request computes its way across it, as it always does."""
        blocks, num_tokens, *rest = super()._get_local_prefix_cache_hit(request)
        rule = self._rule_of(request)
        if rule and num_tokens:
            size = self.dense.block_size
            first = rule.first_cut(request.num_prompt_tokens, self._end(request))
            most = (first - 1) // size * size
            if num_tokens > most:
                blocks = self.kv_cache_manager.truncate_computed_blocks(blocks, most)
                num_tokens = most
        return blocks, num_tokens, *rest

    @leaves_word
    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Make sure the cuts were carried out, and keep what the variant ``naive`` reports."""
        cuts = scheduler_output.vtoken.cuts
        report: StepReport | None = getattr(model_runner_output, "vtoken", None)
        if cuts and (report is None or report.num_cuts != len(cuts)):
            raise VTokenError(
                f"{len(cuts)} cuts were planned but the worker carried out "
                f"{report.num_cuts if report else 0}: its hooks are not active, and going on would "
                "corrupt outputs"
            )
        if report:
            self._reports.extend(report.held)
        result = super().update_from_output(scheduler_output, model_runner_output)
        self._publish(report)
        return result

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        """Requests that are aborted from outside may have been the last ones."""
        result = super().finish_requests(*args, **kwargs)
        self._publish(None)
        return result

    def _free_request_blocks(self, request: Request) -> None:
        """Finished, aborted or preempted: the next life starts from nothing."""
        self._keys.pop(request.request_id, None)
        self._numbers.pop(request.request_id, None)
        super()._free_request_blocks(request)

    # -- metrics ------------------------------------------------------------------------------

    def _publish(self, report: StepReport | None) -> None:
        if self.publisher is None:
            return
        self.publisher.hear(report.metrics if report else None)
        if self.publisher.is_due(idle=not self.running):
            self.publisher.publish(occupancy(self))

    # -- what one request asks for ------------------------------------------------------------

    def _budget_of(self, request: Request) -> int | None:
        """Its budget, or None where it is never cut.

        Streaming input adds to a prompt after its end was known, so its cuts would come too early.
        A server has refused wrong arguments before; of those that come another way nothing counts.
        """
        if not self.vtoken.evicts or request.resumable:
            return None
        params = request.sampling_params
        try:
            return requested_budget(params.extra_args if params else None, self.limits)
        except ConfigError as error:
            logger.warning(
                "request %s is served as if it had no own arguments: %s", request.request_id, error
            )
            return self.limits.budget

    def _rule_of(self, request: Request) -> BudgetRule | None:
        """The eviction points of a request; None where it has none."""
        budget = request.vtoken_budget
        if self.rule is None or budget is None:
            return None
        return self.rule if budget == self.rule.budget else replace(self.rule, budget=budget)

    def _live(self, request: Request) -> int:
        """Tokens of a request that are computed and not evicted."""
        computed: int = request.num_computed_tokens
        return computed - self.dense.removed.get(request.request_id, 0)

    # -- cuts ---------------------------------------------------------------------------------

    def _plan_cuts(self) -> list[Cut]:
        """Cut the requests that stand at an eviction point with too many live tokens."""
        due = {
            request.request_id: (request, count)
            for request in self.running
            if (count := self._num_victims(request))
        }
        sharers = [
            Sharer(
                req_id,
                tuple(block.block_id for block in shared),
                self.dense.num_leaving(live, count),
            )
            for req_id, (request, count) in due.items()
            if (shared := self.dense.shared_blocks(req_id, live := self._live(request)))
        ]
        owners = {
            block: self.dense.block_pool.blocks[block].ref_cnt
            for sharer in sharers
            for block in sharer.shared
        }
        free = self.dense.block_pool.get_num_free_blocks()
        fresh = {sharer.req_id: sharer.fresh for sharer in sharers}
        waiting = fresh.keys() - worth_repacking(sharers, owners, free)
        return [
            self._cut(request, count, fresh.get(req_id, 0))
            for req_id, (request, count) in due.items()
            if req_id not in waiting
        ]

    def _num_victims(self, request: Request) -> int:
        """Tokens a request loses now.

        Where steps overlap, it may be here though its last token is being sampled. That one is
        never computed, so there is nothing to cut for.
        """
        rule, end = self._rule_of(request), self._end(request)
        if rule is None or request.num_computed_tokens >= end - 1:
            return 0
        prompt, computed = request.num_prompt_tokens, request.num_computed_tokens
        return rule.num_victims(prompt, computed, self._live(request), end)

    def _cut(self, request: Request, count: int, fresh: int = 0) -> Cut:
        """Let blocks go and say what the workers have to do about it.

        Args:
            request: The request.
            count: Tokens it loses.
            fresh: Blocks it takes to move out of shared ones.
        """
        req_id, live, size = request.request_id, self._live(request), self.dense.block_size
        held = ceil_div(live, size)
        given, spare = self._owed(req_id, live - count)
        leave = None if spare else self._leaving_blocks(req_id, live, count, fresh)
        known = len(self.dense.req_to_blocks[req_id]) - given
        freed = self.dense.cut(req_id, live, count, leave, spare, fresh)
        plain = leave is None and not spare and known == held
        kept = held - freed
        table = [block.block_id for block in self.dense.req_to_blocks[req_id]]
        taken, table = tuple(table[kept : kept + fresh]), table[: known - freed + fresh]
        number = self._numbers[req_id] = self._numbers.get(req_id, -1) + 1
        return Cut(
            req_id,
            length=request.num_computed_tokens,
            count=count,
            freed_blocks=freed,
            key=self._key(request),
            number=number,
            life=request.num_preemptions,
            leave=leave,
            held=held,
            fresh=taken,
            table=None if plain else tuple(table),
        )

    def _owed(self, req_id: str, kept: int) -> tuple[int, int]:
        """What a request that was scheduled earlier in this very call has coming.

        Its new tokens will follow the tokens kept. They may need a block where the old place of
        theirs was in one that leaves.

        Returns:
            The blocks it was just given, and those it must keep beyond what the kept tokens need.
        """
        fresh, num_new_tokens = self._given.get(req_id, (0, 0))
        size = self.dense.block_size
        missing = ceil_div(kept + num_new_tokens, size) - ceil_div(kept, size) - fresh
        return fresh, max(missing, 0)

    def _leaving_blocks(
        self, req_id: str, live: int, count: int, fresh: int
    ) -> tuple[int, ...] | None:
        """Which blocks leave.

        The leading ones where others may hit them: they are left as they are, and later requests
        still find the beginning of the text. Else by the policy's hint, where it gives a proper
        one; a bad one costs speed, nothing else.

        Raises:
            PolicyError: If the hint is improper and the settings are strict.
        """
        size = self.dense.block_size
        leaving = self.dense.num_leaving(live, count) + fresh
        if fresh or self.dense.serves_cache(req_id):
            return tuple(range(leaving))
        try:
            return proper_hint(self.eviction_policy, ceil_div(live, size), leaving, size)
        except PolicyError as error:
            if self.vtoken.strict:
                raise
            logger.warning_once(str(error))
            return None

    def _end(self, request: Request) -> int:
        """Length of the text when the request has generated all it may."""
        end: int = min(request.num_prompt_tokens + request.max_tokens, self.max_model_len)
        return end

    def _key(self, request: Request) -> int:
        """Hash what makes a request, once per life: its id is random and would not repeat."""
        req_id = request.request_id
        if req_id not in self._keys:
            prompt = array("q", request.prompt_token_ids or ()).tobytes()
            digest = hashlib.blake2b(prompt, digest_size=8, key=b"%d" % self.vtoken.seed).digest()
            self._keys[req_id] = int.from_bytes(digest, "little")
        return self._keys[req_id]

    def _directive(self, cuts: list[Cut], output: SchedulerOutput) -> StepDirective:
        """Only cuts of requests that were not preempted later in the same call."""
        removed = self.dense.removed
        return StepDirective(
            tuple(cut for cut in cuts if cut.req_id in removed),
            {r: removed[r] for r in output.num_scheduled_tokens if r in removed} if removed else {},
        )


class VTokenScheduler(VTokenMixin, Scheduler):
    """vLLM's scheduler with cuts."""


class VTokenAsyncScheduler(VTokenMixin, AsyncScheduler):
    """vLLM's scheduler for overlapped steps, with cuts."""


@leaves_word
def make_scheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> VTokenMixin:
    """Build the scheduler that fits the engine; the dotted name goes into ``scheduler_cls``.

    A function, because only the engine's final configuration says whether steps overlap.
    """
    overlapped = vllm_config.scheduler_config.async_scheduling
    cls = VTokenAsyncScheduler if overlapped else VTokenScheduler
    return cls(vllm_config, *args, **kwargs)


def _pressure(config: VTokenConfig, block_size: int) -> PressureRule | None:
    if not config.evicts or config.trigger is not When.PRESSURE:
        return None
    return PressureRule(config.budget, block_size)


def _rule(config: VTokenConfig, policy: Policy, block_size: int) -> BudgetRule | None:
    if not config.evicts:
        return None
    check_budget(config, policy, block_size)
    if config.trigger is not When.BUDGET:
        return None
    return BudgetRule(config.budget, block_size, config.prefill_interval)
