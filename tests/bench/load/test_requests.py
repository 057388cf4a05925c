"""Lengths and contents of requests."""

from __future__ import annotations

import pytest

from vtoken_sdk.bench.load.prefix_groups import grouped
from vtoken_sdk.bench.load.requests import encoded, tiny_encode, workload_of
from vtoken_sdk.bench.load.settings import LoadSettings
from vtoken_sdk.errors import ConfigError
from vtoken_sdk.testing.tiny_model import VOCAB_SIZE


def requests(count=3, **given):
    load = LoadSettings(model="tiny", **given)
    return encoded(workload_of(load, count), tiny_encode, load.context)


def test_by_default_requests_fill_the_context() -> None:
    made = requests(context=100)
    assert [(len(r.prompt), r.output, r.length) for r in made] == [(75, 25, 100)] * 3
    assert len({tuple(r.prompt) for r in made}) == 3
    assert all(0 < token < VOCAB_SIZE for r in made for token in r.prompt)
    assert made == requests(context=100)


def test_what_is_too_long_is_cut() -> None:
    (one,) = requests(1, context=64, workload="synthetic:prompt=900,output=300")
    assert (len(one.prompt), one.output) == (32, 32)


def test_a_short_workload_comes_again() -> None:
    made = requests(5, context=64, workload="synthetic:prompt=10-40,output=4,requests=2")
    lengths = [r.length for r in made]
    assert lengths == [*lengths[:2], *lengths[:2], lengths[0]]
    assert lengths[0] != lengths[1]
    assert len({tuple(r.prompt) for r in made}) == 5  # lengths only: the contents are filled in


def test_texts_are_cut_to_the_context() -> None:
    made = requests(4, context=128, workload="qmsum")
    assert all(r.length <= 128 for r in made)
    assert max(r.length for r in made) == 128


def test_unknown_workloads_are_refused() -> None:
    with pytest.raises(ConfigError, match="there is no workload"):
        requests(workload="nope")


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_groups_share_their_prefix_and_nothing_else(degree: int) -> None:
    made = encoded(grouped(4, degree, 200, 96, 10), tiny_encode, 210)
    assert all(len(r.prompt) == 200 for r in made)
    for i, one in enumerate(made):
        for j, other in enumerate(made[:i]):
            together = i // degree == j // degree
            assert (one.prompt[:96] == other.prompt[:96]) == together, (i, j)
            assert one.prompt[96:128] != other.prompt[96:128]
