"""The trigger ``pressure``: where a running request would be preempted, somebody is cut instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from vtoken_sdk.reclaim import RunningSequence
from vtoken_sdk.vllm.mixin import Mixin

if TYPE_CHECKING:
    from vllm.v1.request import Request


class PressureMixin(Mixin):
    """The part of the scheduler that cuts in the middle of ``schedule()``."""

    def _allocate_or_cut(
        self, request: Request, num_new_tokens: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Where a running request would not get its blocks, cut somebody and try again.

        Only for running requests: what a waiting one hit in the prefix cache is not its own yet.
        """
        assert self.pressure is not None
        blocks = self._allocate_slots(request, num_new_tokens, *args, **kwargs)
        while blocks is None and request.status == RequestStatus.RUNNING:
            relief = self.pressure.relieve(1, [self._seen(r) for r in self.running])
            if relief.preempt:
                break
            for req_id, count in relief.cuts:
                victim = self.requests[req_id]
                self._cuts.append(self._cut(victim, count))
            blocks = self._allocate_slots(request, num_new_tokens, *args, **kwargs)
        if blocks is not None:
            self._given[request.request_id] = (len(blocks.blocks[0]), num_new_tokens)
        return blocks

    def _seen(self, request: Request) -> RunningSequence:
        """A request as the trigger sees it; while its prompt is read it is left alone.

        So is one that shares blocks, whose cut would free few, and one that was given blocks in
        this very call while others may hit those it has: it cannot move out of them any more.
        """
        budget, req_id = request.vtoken_budget, request.request_id
        read = request.num_computed_tokens >= request.num_prompt_tokens
        if read and self.dense.serves_cache(req_id):
            shares = self.dense.shared_blocks(req_id, self._live(request))
            read = not shares and req_id not in self._given
        return RunningSequence(
            request.request_id,
            self._live(request),
            cuttable=read and budget is not None,
            budget=budget,
        )
