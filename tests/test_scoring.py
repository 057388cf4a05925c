"""The helpers that policies share."""

from __future__ import annotations

import pytest
import torch

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


def test_a_key_of_zeros_is_similar_to_nothing() -> None:
    keys = torch.randn(6, 1, 4)
    keys[2] = 0.0
    assert scoring.redundancy(keys).isfinite().all()
    assert scoring.unit(keys)[2].abs().sum() == 0
