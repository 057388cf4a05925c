"""The workers: vLLM's own, with a model runner that carries out cuts."""

from __future__ import annotations

import functools
import sys
from time import sleep
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_worker import Worker

from vtoken_sdk.config import read_config
from vtoken_sdk.errors import VTokenError
from vtoken_sdk.vllm.canary import check_layout, check_runner
from vtoken_sdk.vllm.compat import check_kv_groups, check_layers
from vtoken_sdk.vllm.directive import StepDirective
from vtoken_sdk.vllm.ending import leaves_word
from vtoken_sdk.vllm.mixin import Mixin
from vtoken_sdk.vllm.runner_v1 import V1Runner
from vtoken_sdk.vllm.runner_v2 import V2Runner

_SEAMS = {
    V1Runner: ("_update_states", "_prepare_inputs"),
    V2Runner: ("update_requests", "prepare_attn", "execute_model"),
}

HEARD_SECONDS = 5.0
"""How long a rank that is not heard waits for the one that is to fail, too."""

if TYPE_CHECKING:
    from collections.abc import Callable

Method = TypeVar("Method", bound="Callable[..., Any]")


def ends_unheard(method: Method) -> Method:
    """Decorate what ranks do together: one that fails alone ends its process.

    vLLM hears of the errors of one rank only. Where another one fails, the others would wait for it
    until vLLM's time is up, which is five minutes.
    """

    @functools.wraps(method)
    def ending(worker: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(worker, *args, **kwargs)
        except VTokenError as error:
            if _is_heard(worker.vllm_config.parallel_config, worker.rank):
                raise
            sleep(HEARD_SECONDS)
            sys.exit(f"rank {worker.rank} has failed: {error}")

    return ending  # type: ignore[return-value]


def _is_heard(parallel: Any, rank: int) -> bool:
    """Whether vLLM hears of the errors of a rank: of the first of the last stage."""
    if parallel.distributed_executor_backend != "mp":
        return True
    stage = parallel.tensor_parallel_size * parallel.prefill_context_parallel_size
    return bool(rank == parallel.world_size - stage)


class WorkerMixin(Mixin):
    """Adds cuts to one of vLLM's workers."""

    def adopt_runner(self) -> None:
        """Put our methods before those of the runner vLLM built."""
        runner = self.model_runner
        mixin = V2Runner if self.use_v2_model_runner else V1Runner
        own = type(runner)
        runner.__class__ = type(f"VToken{own.__name__}", (mixin, own), {"__module__": __name__})
        check_runner(runner, mixin, _SEAMS[mixin])

    @leaves_word
    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Once the cache exists, find its layout and try it."""
        check_kv_groups(kv_cache_config)
        check_layers(self.vllm_config.compilation_config.static_forward_context.values())
        super().initialize_from_config(kv_cache_config)
        config = read_config(self.vllm_config.additional_config)
        assert config is not None
        (group,) = kv_cache_config.kv_cache_groups
        runner = self.model_runner
        runner.start_vtoken(config, group.kv_cache_spec.block_size, self.rank == 0)
        check_layout(runner.layout, runner.kv_caches)

    @leaves_word
    def compile_or_warm_up_model(self) -> Any:
        """Once graphs are captured, see that the attention layers can be watched."""
        result = super().compile_or_warm_up_model()
        runner: Any = self.model_runner
        runner.taps.try_out(lambda: runner._dummy_run(1))
        return result

    @ends_unheard
    @leaves_word
    def execute_model(self, scheduler_output: Any) -> Any:
        """Hand the scheduler's directive to the runner; warm-up steps have none."""
        runner: Any = self.model_runner
        runner.directive = getattr(scheduler_output, "vtoken", None) or StepDirective()
        output = super().execute_model(scheduler_output)
        runner.taps.end()
        return runner.with_report(output)

    @ends_unheard
    @leaves_word
    def sample_tokens(self, grammar_output: Any) -> Any:
        """Send the report along with the sampled tokens."""
        runner: Any = self.model_runner
        return runner.with_report(super().sample_tokens(grammar_output))


class VTokenWorker(WorkerMixin, Worker):
    """vLLM's GPU worker with cuts."""

    @leaves_word
    def _make_model_runner(self) -> Any:
        self.model_runner = super()._make_model_runner()
        self.adopt_runner()
        return self.model_runner


class VTokenCPUWorker(WorkerMixin, CPUWorker):
    """vLLM's CPU worker with cuts."""

    @leaves_word
    def init_device(self) -> None:
        """The CPU worker builds its runner here."""
        super().init_device()
        self.adopt_runner()
