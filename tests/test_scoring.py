"""The helpers that policies share."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.policies.official import cal_similarity
from vtoken_sdk import scoring


def test_sorting_by_position_and_back() -> None:
    order = torch.tensor([2, 0, 3, 1])
    values = torch.tensor([5.0, 6.0, 7.0, 8.0])
    assert torch.equal(scoring.in_view_order(values[order], order), values)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 7, 50])
def test_pools_against_a_loop(width: int) -> None:
    torch.manual_seed(width)
    values = torch.rand(20)
    near = [values[max(i - width // 2, 0) : max(i + (width + 1) // 2, 0)] for i in range(20)]
    averages = torch.stack([part.sum() / width for part in near])
    torch.testing.assert_close(scoring.mean_pool(values, width), averages)
    assert torch.equal(scoring.max_pool(values, width), torch.stack([p.max() for p in near]))


def test_rows_scale_to_one_and_rows_of_zeros_stay() -> None:
    rows = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    assert scoring.shares(rows).tolist() == [[0.25, 0.75], [0.0, 0.0]]


def test_redundancy_does_not_depend_on_how_rows_are_chunked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    keys = torch.randn(50, 3, 8)
    whole = scoring.redundancy(keys)
    assert whole.shape == (50, 3)
    torch.testing.assert_close(whole.sum(0), torch.ones(3))
    monkeypatch.setattr(scoring, "_CHUNK", 7)
    torch.testing.assert_close(scoring.redundancy(keys), whole)


@pytest.mark.parametrize("n", [65, 200, 333])
def test_redundancy_of_many_chunks_is_the_official_one(n: int) -> None:
    torch.manual_seed(n)
    keys = torch.randn(n, 2, 16)
    keys[n // 2 :] = keys[: n - n // 2] + 0.3 * torch.randn(n - n // 2, 2, 16)
    found = scoring.redundancy(keys)
    for head in range(2):
        official = cal_similarity(keys[:, head].double().numpy())
        torch.testing.assert_close(found[:, head], torch.from_numpy(official).float())


class Largest(TorchDispatchMode):
    """Notes the largest tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return made


def test_redundancy_never_holds_all_pairs() -> None:
    """At the end of a long prompt, they would not fit."""
    largest = {}
    for n in (1000, 2000):
        with Largest() as made:
            scoring.redundancy(torch.randn(n, 3, 8))
        largest[n] = made.elements
    assert largest[2000] == 2 * largest[1000]
    assert largest[2000] < 2000**2 / 10


def test_a_key_of_zeros_is_similar_to_nothing() -> None:
    keys = torch.randn(6, 1, 4)
    keys[2] = 0.0
    assert scoring.redundancy(keys).isfinite().all()
    assert scoring.unit(keys)[2].abs().sum() == 0
