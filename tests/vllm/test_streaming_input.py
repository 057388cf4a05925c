"""Streaming input: a request whose prompt goes on after it was answered."""

from __future__ import annotations

import pytest

from vtoken_sdk.config import make_config
from vtoken_sdk.simulate.engine import Pool, SchedulerOnlyEngine


@pytest.mark.parametrize("trigger", ["budget", "pressure"])
@pytest.mark.parametrize("resumable", [False, True])
def test_a_prompt_in_parts_is_never_cut(resumable, trigger):
    config = make_config(policy="random", budget=64, trigger=trigger)
    engine = SchedulerOnlyEngine(Pool(34, max_model_len=512), config)
    for name in ("a", "b"):
        engine.add(name, 200, 90)
    scheduler = engine.scheduler
    for request in scheduler.requests.values():
        request.resumable = resumable
        request.vtoken_budget = scheduler._budget_of(request)
    cuts = 0
    for _ in range(80):
        output = engine.schedule()
        cuts += len(output.vtoken.cuts)
        engine.answer(output)
    assert bool(cuts) is not resumable
