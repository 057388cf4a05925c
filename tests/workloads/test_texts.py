"""Lengths filled with text: exact, and shared where the trace says so."""

from __future__ import annotations

import pytest

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.workloads import Workload, WorkloadRequest, load_workload
from vtoken_sdk.workloads.texts import BOOK, prompt_ids


def encode(text: str) -> list[int]:
    return [hash(word) % 50_000 for word in text.split()]


def shared(a: list[int], b: list[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def test_lengths_are_exact():
    workload = load_workload("mooncake", scale=0.05)
    prompts = prompt_ids(workload, encode)
    assert [len(p) for p in prompts] == [r.prompt_tokens for r in workload.requests]


def test_prompts_share_what_their_ids_share():
    requests = tuple(WorkloadRequest(0.0, 250, 1, ids) for ids in [(0, 1, 2), (0, 1, 3), (4, 1, 2)])
    a, b, c = prompt_ids(Workload("w", requests, prefix_chunk=100), encode)
    assert shared(a, b) == 200
    assert shared(a, c) == 0
    assert a[100:] == c[100:]


def test_without_ids_prompts_differ_and_long_ones_wrap():
    requests = tuple(WorkloadRequest(0.0, 20_000, 1) for _ in range(3))
    a, b, c = prompt_ids(Workload("w", requests), encode)
    assert len(a) == 20_000
    assert shared(a, b) == shared(b, c) == 0


def test_texts_are_taken_as_they_are():
    workload = load_workload("mt-bench", limit=2)
    assert prompt_ids(workload, encode)[0] == encode(workload.requests[0].text)


def test_a_book_of_ones_own(tmp_path):
    workload = load_workload("synthetic:prompt=7,output=1,requests=2")
    (tmp_path / "book.txt").write_text("one two three")
    a, _ = prompt_ids(workload, encode, tmp_path / "book.txt")
    assert a == [*encode("one two three") * 2, encode("one")[0]]
    with pytest.raises(ConfigError, match="cannot read"):
        prompt_ids(workload, encode, tmp_path / "no.txt")
    (tmp_path / "short.txt").write_text("one")
    with pytest.raises(ConfigError, match="too short"):
        prompt_ids(workload, encode, tmp_path / "short.txt")
    assert BOOK.is_file()
