"""A policy that breaks the engine it runs in, to show that the soak notices."""

from __future__ import annotations

from dataclasses import dataclass

from vtoken_sdk import ScoringPolicy


@dataclass
class Faulty(ScoringPolicy):
    """In the worker survivors are no longer copied; in the scheduler one block is never freed."""

    name = "faulty"
    recent: int = 16

    def score(self, seq):
        from vtoken_sdk import relocate

        relocate.copy_kv = lambda *_: None
        return seq.random()

    def leaving_blocks(self, num_blocks, num_leaving, block_size):
        from vtoken_sdk.vllm.kv_manager import DenseManager

        let_go = DenseManager.let_go

        def lose_one(manager, request_id, leaving):
            DenseManager.let_go = let_go
            let_go(manager, request_id, leaving[1:])

        if not getattr(self, "lost", False):
            self.lost, DenseManager.let_go = True, lose_one
        return super().leaving_blocks(num_blocks, num_leaving, block_size)
