"""A short soak passes, one of a faulty engine does not, and each check can fail. See tests/soak."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.eviction_rules import Cut
from tests.soak import faulty
from tests.soak.bad import BAD, Bad
from tests.soak.judge import fewest_wrong, lives_of
from tests.soak.plan import SETUPS, Ask, Setup, requests
from tests.soak.run import MOST_GROWTH, leaks, soak
from tests.vllm.served import add_tokenizer
from vtoken_sdk.testing.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return add_tokenizer(make_tiny_model(tmp_path_factory.mktemp("soaked")))


def test_a_short_soak(model, tmp_path, note):
    soaked = soak(SETUPS["h2o, prompts too"], model, tmp_path, count=90, seed=1, sample=1)
    # So few requests are all warm-up, so memory is not looked at.
    assert [v for v in soaked.violations if not v.startswith("memory")] == []
    outcomes = soaked.outcomes()
    assert outcomes["answered"] > 40
    assert outcomes["left"] > 3
    assert outcomes["refused"] > 5
    assert sum(judged.evicted for judged in soaked.judgements) > 10
    note(f"{dict(outcomes)}, {sum(judged.tokens for judged in soaked.judgements)} tokens right")


def test_a_faulty_engine_is_noticed(model, tmp_path):
    setup = Setup(f"{faulty.__file__}:Faulty", 96)
    soaked = soak(setup, model, tmp_path, count=40, seed=1, sample=1)
    assert any("tokens are wrong" in violation for violation in soaked.violations)
    assert any("blocks leaked" in violation for violation in soaked.violations)


def test_requests_are_of_every_kind():
    for setup in SETUPS.values():
        made = list(requests(setup, 600, seed=0))
        assert made == list(requests(setup, 600, seed=0))
        bad = [request for request in made if isinstance(request, Bad)]
        asks = [request for request in made if isinstance(request, Ask)]
        assert len({request.name for request in bad}) > len(BAD) // 2
        assert any(ask.stream for ask in asks)
        assert any(ask.seed is not None for ask in asks)
        assert any(ask.leave_after for ask in asks)
        assert any(ask.patience for ask in asks)
        assert any(ask.xargs.get("vtoken_policy") == "none" for ask in asks)
        assert any("vtoken_budget" in ask.xargs for ask in asks)


HELD = ("vtoken_allocated_blocks", "vtoken_live_tokens", "vllm:kv_cache_usage_perc")
EMPTY = dict.fromkeys(HELD, 0.0)


def test_leaks_are_told():
    assert leaks(EMPTY, [1 << 30, (1 << 30) + MOST_GROWTH]) == []
    for name in HELD:
        (told,) = leaks(EMPTY | {name: 0.5}, [1 << 30])
        assert f"'{name}': 0.5" in told
    (told,) = leaks(EMPTY, [1 << 30, (1 << 30) + MOST_GROWTH + 1])
    assert told.startswith("memory grew by 24 MiB")


def test_each_token_has_to_be_right_for_one_life_and_lives_follow_each_other():
    assert fewest_wrong([[True, True, True]]) == 0
    assert fewest_wrong([[True, False, True]]) == 1
    assert fewest_wrong([[True, True, False], [False, False, True]]) == 0
    assert fewest_wrong([[False, False, True], [True, True, False]]) == 1
    assert fewest_wrong([[True, False, False], [False] * 3, [False, False, True]]) == 1


def test_lives_without_a_cut_count_too():
    first, third = (Cut("r", life, "vtoken", 40, (5,), 39, 1, 0) for life in (0, 2))
    assert lives_of([], may_end_uncut=True) == [[]]
    assert lives_of([first, third], may_end_uncut=False) == [[first], [], [third]]
    assert lives_of([first], may_end_uncut=True) == [[first], []]
