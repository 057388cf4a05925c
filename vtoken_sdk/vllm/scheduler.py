"""The scheduler half: how many tokens leave, when, and which blocks go back.

Cuts are planned at the head of ``schedule()``, before vLLM looks at the pool, so their blocks can
be handed out in the same call. The workers carry them out at the start of that step.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from vtoken_sdk.config import Variant, VTokenConfig, check_budget, read_config
from vtoken_sdk.errors import PolicyError, VTokenError
from vtoken_sdk.reclaim import BudgetRule
from vtoken_sdk.registry import make_policy
from vtoken_sdk.selection import proper_hint
from vtoken_sdk.vllm.canary import check_manager
from vtoken_sdk.vllm.compat import check_kv_groups, check_worker_class
from vtoken_sdk.vllm.directive import Cut, HeldBlocks, StepDirective, StepReport
from vtoken_sdk.vllm.kv_manager import DenseManager, NaiveManager, adopt
from vtoken_sdk.vllm.online_checks import check_blocks

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    from vtoken_sdk.policy import Policy

logger = init_logger(__name__)

if TYPE_CHECKING:
    _Base = Any  # mixed into classes of vLLM, which are untyped
else:
    _Base = object


class VTokenMixin(_Base):
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
        self._keys: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._reports: list[HeldBlocks] = []
        check_manager(self.dense)

    # -- seams of vLLM's scheduler ------------------------------------------------------------

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Plan cuts, let vLLM schedule, and attach what the workers have to know."""
        if isinstance(self.dense, NaiveManager):
            for report in self._reports:
                self.dense.release(report)
            self._reports.clear()
        cuts = self._plan_cuts() if self.rule else []
        output = super().schedule(*args, **kwargs)
        output.vtoken = self._directive(cuts, output)
        if self.vtoken.check_invariants:
            check_blocks(self.dense, {r.request_id: self._live(r) for r in self.running})
        return output

    def _reserve_prefill_lookahead(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        """No chunk crosses an eviction point, unless the whole request fits the budget."""
        if self.rule and self._end(request) > self.rule.budget:
            point = self.rule.next_point(request.num_prompt_tokens, num_computed_tokens)
            num_new_tokens = min(num_new_tokens, point - num_computed_tokens)
        clipped: int = super()._reserve_prefill_lookahead(
            request, num_computed_tokens, num_new_tokens
        )
        return clipped

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
        return super().update_from_output(scheduler_output, model_runner_output)

    def _free_request_blocks(self, request: Request) -> None:
        """Finished, aborted or preempted: the next life starts from nothing."""
        self._keys.pop(request.request_id, None)
        self._numbers.pop(request.request_id, None)
        super()._free_request_blocks(request)

    # -- cuts ---------------------------------------------------------------------------------

    def _plan_cuts(self) -> list[Cut]:
        return [cut for request in self.running if (cut := self._plan_cut(request))]

    def _plan_cut(self, request: Request) -> Cut | None:
        """Cut a request that stands at an eviction point with too many live tokens."""
        assert self.rule is not None
        req_id, computed = request.request_id, request.num_computed_tokens
        live = self._live(request)
        count = self.rule.num_victims(request.num_prompt_tokens, computed, live, self._end(request))
        if not count:
            return None
        leave = self._leaving_blocks(req_id, live, count)
        freed = self.dense.cut(req_id, live, count, leave)
        table = self.dense.req_to_blocks[req_id] if leave is not None else None
        number = self._numbers[req_id] = self._numbers.get(req_id, -1) + 1
        return Cut(
            req_id,
            length=computed,
            count=count,
            freed_blocks=freed,
            key=self._key(request),
            number=number,
            life=request.num_preemptions,
            leave=leave,
            table=None if table is None else tuple(block.block_id for block in table),
        )

    def _leaving_blocks(self, req_id: str, live: int, count: int) -> tuple[int, ...] | None:
        """The policy's hint, where it gives a proper one; a bad one costs speed, nothing else.

        Raises:
            PolicyError: If the hint is improper and the settings are strict.
        """
        held = len(self.dense.req_to_blocks[req_id])
        leaving = self.dense.num_leaving(req_id, live, count)
        try:
            return proper_hint(self.eviction_policy, held, leaving, self.dense.block_size)
        except PolicyError as error:
            if self.vtoken.strict:
                raise
            logger.warning_once(str(error))
            return None

    def _live(self, request: Request) -> int:
        """Tokens of a request that are computed and not evicted."""
        live: int = request.num_computed_tokens - self.dense.removed.get(request.request_id, 0)
        return live

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


def make_scheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> VTokenMixin:
    """Build the scheduler that fits the engine; the dotted name goes into ``scheduler_cls``.

    A function, because only the engine's final configuration says whether steps overlap.
    """
    overlapped = vllm_config.scheduler_config.async_scheduling
    cls = VTokenAsyncScheduler if overlapped else VTokenScheduler
    return cls(vllm_config, *args, **kwargs)


def _rule(config: VTokenConfig, policy: Policy, block_size: int) -> BudgetRule | None:
    if not config.evicts:
        return None
    check_budget(config, policy, block_size)
    return BudgetRule(config.budget, block_size, config.prefill_interval)
