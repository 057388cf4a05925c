"""Policies whose answer depends on the rank that asks; see ``test_parallel.py``."""

from __future__ import annotations

from torch import distributed

from vtoken_sdk import ScoringPolicy
from vtoken_sdk.vllm import ranks


class OwnMind(ScoringPolicy):
    """Evicts the newest tokens on one rank and the oldest on the other."""

    name = "own-mind"
    sinks, recent = 4, 16

    def score(self, seq):
        sign = 1.0 if distributed.get_rank() else -1.0
        return sign * seq.token_ids.float()


class Unheeding(OwnMind):
    """The same, and a fault with it: no rank listens to the first."""

    name = "unheeding"

    def __init__(self, **rest):
        super().__init__(**rest)
        ranks.TensorParallelRanks.first = lambda _self, tensor: tensor.clone()


class FailsOnOne(OwnMind):
    """Raises on the rank whose errors vLLM does not hear."""

    name = "fails-on-one"

    def score(self, seq):
        if distributed.get_rank():
            raise RuntimeError("only here")
        return super().score(seq)
