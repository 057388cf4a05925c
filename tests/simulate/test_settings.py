"""Who is asked what, and what is refused before anything runs."""

from __future__ import annotations

import pytest

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.simulate.clock import Clock, parse_clock
from vtoken_sdk.simulate.settings import SimulateSettings, deal, repeat
from vtoken_sdk.workloads import Workload, WorkloadRequest


def workload(*lengths: int, gap: float = 2.0) -> Workload:
    requests = tuple(WorkloadRequest(gap * at, n, 10) for at, n in enumerate(lengths))
    return Workload("w", requests)


def settings(**given) -> SimulateSettings:
    return SimulateSettings("w", **({"blocks": 11, "max_num_seqs": 4} | given))


def test_requests_the_pool_cannot_hold_are_left_out_and_counted():
    share = deal(settings(), workload(100, 150, 151, 9_000))
    assert [r.prompt_tokens for r in share.gpus[0]] == [100, 150]
    assert (share.context, share.left_out) == (160, 2)


def test_requests_are_dealt_out_in_turn():
    share = deal(settings(gpus=3, only=2), workload(1, 2, 3, 4, 5))
    assert [[r.prompt_tokens for r in gpu] for gpu in share.gpus] == [[1, 4], [2, 5]]


def test_impossible_pools_say_what_would_work():
    with pytest.raises(ConfigError, match=r"--context 200 does not fit .* --blocks 14"):
        deal(settings(context=200), workload(10))
    with pytest.raises(ConfigError, match="the shortest needs --blocks 64 and --context 1000"):
        deal(settings(), workload(990, 995))


def test_more_engines_than_requests_cost_nothing():
    share = deal(settings(gpus=10**12), workload(1, 2))
    assert [[r.prompt_tokens for r in gpu] for gpu in share.gpus] == [[1], [2]]


def test_a_pool_that_no_memory_holds_is_refused():
    with pytest.raises(ConfigError, match=r"--blocks 1000000000 is more than .* --gpus"):
        settings(blocks=10**9)


def test_a_trace_is_repeated_until_it_is_long_enough():
    requests = list(workload(5, 6, 7).requests)
    times = [r.arrival_s for r in repeat(requests, 14 / 3600)]
    assert times == [0, 2, 4, 6, 8, 10, 12]
    with pytest.raises(ConfigError, match="use --rate"):
        repeat(list(workload(5, 6, gap=0).requests), 1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"variants": ("off",)}, "nothing is measured"),
        ({"variants": ("nativ",)}, "unknown variant 'nativ'"),
        ({"prefix_caching": True}, "leave it out of --variants"),
        ({"blocks": 1}, "--blocks must be at least 2"),
        ({"gpus": 0}, "--gpus must be at least 1"),
        ({"gpus": 2, "only": 3}, "--only 3 is more than"),
        ({"hours": 0.0}, "--hours must be above 0"),
        ({"trigger": "often"}, "unknown trigger"),
        ({"max_num_batched_tokens": 2}, "too small for 4 requests at once"),
    ],
)
def test_settings_that_cannot_work(given, told):
    with pytest.raises(ConfigError, match=told):
        settings(**given)


def test_the_clock():
    clock = parse_clock("1e-2, 0.001, 0")
    assert clock == Clock(0.01, 0.001, 0.0)
    assert clock.seconds(10, 99) == pytest.approx(0.02)
    for text in ("1", "1,2", "a,b,c", "0,1,1", "1,-1,1", "1,inf,1"):
        with pytest.raises(ConfigError, match="STEP,TOKEN,KV"):
            parse_clock(text)
