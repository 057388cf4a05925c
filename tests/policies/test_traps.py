"""What reimplementations of the published policies have got wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.policies import official
from tests.policies.tensors import causal_attention, random_tensors
from vtoken_sdk.registry import make_policy
from vtoken_sdk.testing import make_view, scores, victims


def given(policy, rows: list[list[float]], **more):
    """A view of as many tokens as the rows are long."""
    return make_view(policy, len(rows[0]), attention=torch.tensor(rows), **more)


# H2O


def test_h2o_without_recent_tokens_protects_nothing() -> None:
    policy = make_policy("h2o", {"recent": 0}, "paper")
    rows = [[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.4, 0.4, 0.2, 0.0], [0.3, 0.4, 0.2, 0.1]]
    assert victims(given(policy, rows), 2) == [2, 3]
    assert victims(given(policy, rows), 4) == [0, 1, 2, 3]


def test_h2o_as_published_freezes_on_early_tokens_and_by_default_does_not() -> None:
    n = 40
    rows = torch.full((n, n), 1.0).tril() / torch.arange(1, n + 1)[:, None]  # all are equal
    rows[30:, 20] += 0.2  # but everybody has looked at this one since it was written
    frozen = make_policy("h2o", {"recent": 4}, "paper")
    assert victims(make_view(frozen, n, attention=rows), 12) == list(range(24, 36))
    default = make_policy("h2o", {"sinks": 0, "recent": 4})
    kept = set(range(n)) - set(victims(make_view(default, n, attention=rows), 35))
    assert kept == {20, 36, 37, 38, 39}


def test_h2o_is_not_what_kvpress_calls_observed_attention() -> None:
    tensors = random_tensors()
    n = tensors.attention.shape[-1]
    observed = tensors.attention.sum(2) / torch.arange(n, 0, -1)
    expected = observed.mean((0, 1)).float()
    every = {"every_layer": 1}
    default = scores(tensors.view(make_policy("h2o", every)))
    torch.testing.assert_close(default, expected)
    published = scores(tensors.view(make_policy("h2o", every, "paper")))
    assert published.argsort().tolist() != expected.argsort().tolist()


@pytest.mark.parametrize("preset", ["paper", "default"])
def test_h2o_counts_on_after_a_cut(preset: str) -> None:
    """Prompt of 40, cut by 12, then 8 queries that see only what is alive."""
    torch.manual_seed(2)
    queries, keys = torch.randn(1, 48, 1, 8), torch.randn(1, 48, 1, 8)
    policy = make_policy("h2o", {"recent": 4, "every_layer": 1}, preset)
    first = causal_attention(queries[:, :40], keys[:, :40])[0, 0]
    view = make_view(policy, 40, attention=first.float())
    gone = victims(view, 12)
    policy.observe(view)
    alive = [token for token in range(48) if token not in gone]
    second = causal_attention(queries[:, 40:], keys[:, alive])[0, 0]
    columns = {
        name: torch.cat([view.column(name)[alive[:28]], torch.zeros(8)])
        for name in ("mass", "seen")
    }
    later = make_view(policy, alive, attention=second.float(), columns=columns)
    mass = np.zeros(48)
    for query in range(40):
        mass[:40] += first[query].numpy()
    for query in range(8):
        mass[alive] += second[query].numpy()
    seen = 48 - np.arange(48) if preset == "default" else 1
    np.testing.assert_allclose(scores(later), (mass / seen)[alive], rtol=1e-5)
    assert victims(later.shuffled(), 10) == victims(later, 10)


# StreamingLLM


def test_streaming_llm_goes_by_position_in_the_text_not_in_the_cache() -> None:
    policy = make_policy("streaming-llm", {"sinks": 2})
    alive = [0, 1, 40, 41, 7, 50, 8]
    assert victims(make_view(policy, alive), 2) == [7, 8]
    assert scores(make_view(policy, alive)).tolist() == alive


# Scissorhands


def test_scissorhands_breaks_ties_by_age() -> None:
    policy = make_policy("scissorhands", {"sinks": 0, "recent": 1, "window": 2})
    rows = [[0.1, 0.1, 0.1, 0.1, 0.6, 0.0], [0.1, 0.1, 0.1, 0.1, 0.1, 0.5]]
    assert victims(given(policy, rows).shuffled(), 3) == [0, 1, 2]


@pytest.mark.parametrize(("preset", "expected"), [("paper", [-1, -2, 0]), ("default", [0, 0, 0])])
def test_scissorhands_counts_no_queries_that_were_never_asked(preset: str, expected: list) -> None:
    """Of the window of 400 or 100 rows, two are there; the rest is zeros."""
    policy = make_policy("scissorhands", {"recent": 1}, preset)
    assert scores(given(policy, [[0.9, 0.1, 0.0], [0.2, 0.2, 0.6]])).tolist() == expected


def test_scissorhands_lets_old_counts_fade() -> None:
    """Of a window of 8 queries, 2 are new: three quarters of the old counts stand."""
    policy = make_policy("scissorhands", {"sinks": 0, "recent": 1, "window": 8})
    rows = [[0.0, 0.0, 0.0, 0.1, 0.9, 0.0], [0.0, 0.0, 0.0, 0.1, 0.2, 0.7]]
    old = {"counts": torch.tensor([4.0, 8.0, 0.0, 2.0, 0.0, 0.0])}
    # Of six tokens the sixth is the threshold, so nothing is above it and nothing is added.
    assert scores(given(policy, rows, columns=old)).tolist() == [3.0, 6.0, 0.0, 1.5, 0.0, 0.0]
    all_new = make_view(
        policy, [0, 1, 2, 3, 4, 20], attention=torch.full((8, 6), 1 / 6), columns=old
    )
    assert scores(all_new).tolist() == [0.0] * 6


# SnapKV


def test_snapkv_does_not_pool_across_the_edge_of_its_window() -> None:
    policy = make_policy("snapkv", {"sinks": 0, "window": 2, "kernel": 3})
    rows = [[0.0, 0.0, 0.0, 0.3, 0.7, 0.0], [0.0, 0.0, 0.0, 0.1, 0.1, 0.8]]
    torch.testing.assert_close(
        scores(given(policy, rows))[:4], torch.tensor([0.0, 0.0, 0.4 / 3, 0.4 / 3])
    )


def test_snapkv_pools_along_the_text_not_along_memory() -> None:
    policy = make_policy("snapkv", {"sinks": 0, "window": 1, "kernel": 3})
    ids = [5, 0, 3, 1, 2, 4]
    rows = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0, 0.0]])  # token 0 gets it all
    pooled = scores(make_view(policy, ids, attention=rows))
    assert {ids[i] for i in pooled.nonzero().flatten()} == {0, 1}


def test_snapkv_keeps_its_window_even_where_recent_is_smaller() -> None:
    assert make_policy("snapkv", {"recent": 2, "window": 12}).recent == 12
    assert make_policy("snapkv", {"recent": 20, "window": 12}).recent == 20


# TOVA


def test_tova_as_published_may_drop_the_newest_token() -> None:
    rows = [[0.3, 0.3, 0.3, 0.1]]
    assert victims(given(make_policy("tova", preset="paper"), rows), 1) == [3]
    assert victims(given(make_policy("tova", {"sinks": 0}), rows), 1) == [0]


# R-KV


def test_r_kv_equals_the_official_code_where_there_is_one_head() -> None:
    """Officially the softmax is over older tokens only; here rows are scaled to that sum."""
    torch.manual_seed(3)
    queries, keys = torch.randn(1, 50, 1, 8), torch.randn(1, 50, 1, 8)
    logits = (queries[0, -8:, 0] @ keys[0, :-8, 0].T).double() / 8**0.5
    expected = official.r_kv(logits.softmax(-1).numpy(), keys.double().numpy())
    policy = make_policy("r-kv", preset="paper")
    rows = causal_attention(queries, keys)[0, 0].float()
    found = scores(make_view(policy, 50, attention=rows, keys=list(keys)))
    np.testing.assert_allclose(found[:-8], expected[:-8], rtol=1e-5)


def test_r_kv_keeps_the_newest_of_tokens_that_say_the_same() -> None:
    torch.manual_seed(4)
    keys = torch.randn(1, 40, 2, 1024)
    keys[0, [6, 15, 24]] = keys[0, 6].clone()  # three times the same
    policy = make_policy("r-kv", {"sinks": 0, "every_layer": 1, "mix_lambda": 0.0})
    rows = torch.full((8, 40), 1 / 40)
    assert victims(make_view(policy, 40, attention=rows, keys=list(keys)), 2) == [6, 15]


# All that look at keys


@pytest.mark.parametrize("name", ["knorm", "keydiff", "r-kv"])
def test_keys_are_scored_by_kv_head(name: str) -> None:
    """What two KV heads say is the mean of what each of them says."""
    keys = random_tensors(kv_heads=2).keys
    policy = make_policy(name, {"every_layer": 1})
    rows = torch.full((8, 60), 1 / 60)
    two = scores(make_view(policy, 60, attention=rows, keys=list(keys)))
    one = [
        scores(make_view(policy, 60, attention=rows, keys=list(keys[:, :, [h]]))) for h in (0, 1)
    ]
    torch.testing.assert_close(two, (one[0] + one[1]) / 2)
