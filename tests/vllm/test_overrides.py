"""What a request may ask for: read, refused, and honoured by the scheduler."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from vtoken_sdk.config import make_config
from vtoken_sdk.errors import ConfigError
from vtoken_sdk.simulate.engine import Pool, SchedulerOnlyEngine
from vtoken_sdk.vllm.overrides import Limits, requested_budget
from vtoken_sdk.vllm.request_check import find_problem

LIMITS = Limits("h2o", budget=128, least_budget=52)


@pytest.mark.parametrize(
    ("arguments", "budget"),
    [
        (None, 128),
        ({}, 128),
        ({"somebody_elses": [1]}, 128),
        ({"vtoken_policy": "h2o"}, 128),
        ({"vtoken_policy": "none"}, None),
        ({"vtoken_budget": 52}, 52),
        ({"vtoken_budget": 4096, "vtoken_policy": "h2o"}, 4096),
    ],
)
def test_the_budget_of_a_request(arguments, budget):
    assert requested_budget(arguments, LIMITS) == budget


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vtoken_budget": 51}, "51 is too small: policy 'h2o' needs at least 52"),
        ({"vtoken_budget": -1}, "at least 52"),
        ({"vtoken_budget": "64"}, "whole number, got '64'"),
        ({"vtoken_budget": 64.0}, r"whole number, got 64\.0"),
        ({"vtoken_budget": True}, "whole number, got True"),
        ({"vtoken_policy": "knorm"}, "it is 'h2o', or 'none'"),
        ({"vtoken_policy": 7}, "vtoken_policy is 7"),
        ({"vtoken_policy": "none", "vtoken_budget": 64}, "leave one out"),
        ({"vtoken_bugdet": 64}, "vtoken_bugdet; there are vtoken_budget and vtoken_policy"),
    ],
)
def test_what_is_wrong_is_named(arguments, message):
    with pytest.raises(ConfigError, match=message):
        requested_budget(arguments, LIMITS)
    assert find_problem(json.dumps({"vllm_xargs": arguments}).encode(), LIMITS)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json, vtoken_budget",
        b'["vtoken_budget"]',
        b'{"prompt": "vtoken_budget: 1"}',
        b'{"vllm_xargs": "vtoken_budget"}',
        b'{"vllm_xargs": {"vtoken_budget": 64}}',
    ],
)
def test_what_is_none_of_our_business_passes(body):
    assert find_problem(body, LIMITS) is None


@pytest.mark.parametrize(
    ("request_", "refused"),
    [
        ({"prompt_logprobs": 0}, True),
        ({"echo": True, "logprobs": 1}, True),
        ({"echo": True, "top_logprobs": 0, "prompt_logprobs": None}, True),
        ({"prompt_logprobs": None}, False),
        ({"echo": True}, False),
        ({"logprobs": 1}, False),
        ({"prompt_logprobs": 1, "vllm_xargs": {"vtoken_policy": "none"}}, False),
    ],
)
def test_prompt_logprobs_where_prompts_are_cut(request_, refused):
    body = json.dumps(request_).encode()
    problem = find_problem(body, replace(LIMITS, cuts_prompts=True))
    assert ("leave prompt_logprobs out" in (problem or "")) == refused
    assert find_problem(body, LIMITS) is None


def test_an_escaped_name_is_seen():
    assert find_problem(rb'{"vllm_xargs": {"\u0076token_budget": 1}}', LIMITS)


def engine(trigger="budget", num_blocks=200):
    config = make_config(policy="random", budget=128, trigger=trigger)
    return SchedulerOnlyEngine(Pool(num_blocks, max_model_len=1_024), config)


def most_live(engine, *req_ids):
    """The most live tokens each request had while it generated."""
    most = dict.fromkeys(req_ids, 0)
    while engine.scheduler.has_unfinished_requests():
        engine.step()
        for req_id in req_ids:
            request = engine.scheduler.requests.get(req_id)
            if request and request.num_computed_tokens > request.num_prompt_tokens:
                removed = engine.manager.removed.get(req_id, 0)
                most[req_id] = max(most[req_id], request.num_computed_tokens - removed)
    return most


def test_each_request_keeps_what_it_asked_for():
    made = engine()
    made.add("served", 300, 200)
    made.add("roomy", 300, 200, {"vtoken_budget": 256})
    made.add("tight", 300, 200, {"vtoken_budget": 64})
    made.add("whole", 300, 200, {"vtoken_policy": "none"})
    made.add("wrong", 300, 200, {"vtoken_budget": "much"})  # past a server: as if it were not there
    assert most_live(made, "served", "roomy", "tight", "whole", "wrong") == {
        "served": 128,
        "roomy": 256,
        "tight": 64,
        "whole": 498,
        "wrong": 128,
    }
    assert made.counters.preemptions == 0
    assert made.manager.block_pool.get_num_free_blocks() == 199


def test_under_pressure_each_is_cut_to_its_own_budget():
    made = engine("pressure", num_blocks=70)
    made.add("whole", 20, 600, {"vtoken_policy": "none"})
    made.add("roomy", 20, 600, {"vtoken_budget": 256})
    made.add("served", 20, 600)
    cut: dict[str, set[int]] = {}
    while made.scheduler.has_unfinished_requests():
        for each in made.step().vtoken.cuts:
            live = each.length - made.manager.removed[each.req_id]
            cut.setdefault(each.req_id, set()).add(live)
    assert cut == {"roomy": {256 - 16}, "served": {128 - 16}}
    assert made.counters.preemptions == 0


def test_whoever_opted_out_is_admitted_as_by_stock_vllm():
    """Its text may grow to the whole context; nobody waits for that."""
    made = engine(num_blocks=80)
    for i in range(4):
        made.add(str(i), 100, 900, {"vtoken_policy": "none"})
    made.step()
    assert len(made.scheduler.running) == 4
