"""Admission: a waiting request comes in once what everybody will hold at the peak fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vtoken_sdk.tensors import ceil_div
from vtoken_sdk.vllm.mixin import Mixin

if TYPE_CHECKING:
    from vllm.v1.request import Request


class AdmissionMixin(Mixin):
    """The part of the scheduler that counts what sequences will hold."""

    def _admission(self, req_id: str) -> tuple[int, int]:
        """Peak tokens of a waiting request, and blocks the running ones have yet to claim.

        A request that opted out of eviction is admitted by vLLM's rule: once what is known of its
        text fits.
        """
        request = self.requests[req_id]
        rule = self._rule_of(request)
        peak = request.num_tokens
        if rule:
            peak = rule.peak_tokens(request.num_prompt_tokens, self._last(request))
        return peak, sum(map(self._unclaimed_blocks, self.running))

    def _unclaimed_blocks(self, request: Request) -> int:
        """Blocks a running request does not hold yet but will.

        Its own counters say whether the prompt is read: vLLM's ``is_prefill_chunk`` is not set yet
        for a request that came in earlier in the same call.
        """
        rule = self._rule_of(request)
        end, prompt = self._last(request), request.num_prompt_tokens
        if rule is None:
            top = request.num_tokens
        elif request.num_computed_tokens < prompt:
            top = rule.peak_tokens(prompt, end)
        else:
            top = rule.later_tokens(end)
        held = len(self.dense.req_to_blocks[request.request_id])
        if rule and request.num_computed_tokens >= prompt:
            # What is shared may stay, and then comes on top of the budget.
            held -= len(self.dense.shared_blocks(request.request_id, self._live(request)))
        return max(ceil_div(top, self.dense.block_size) - held, 0)

    def _last(self, request: Request) -> int:
        """The end of the last token or draft that may need a place."""
        last: int = self._end(request) + self.num_spec_tokens
        return last
