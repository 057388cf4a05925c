"""Each invariant holds for what is right and names what is wrong."""

from __future__ import annotations

import pytest
import torch

from vtoken_sdk.errors import InvariantViolation
from vtoken_sdk.invariants import (
    check_consistent_snapshot,
    check_copy_before_read,
    check_token_conservation,
    check_unique_live_slots,
    content_hash,
)

T = torch.tensor


def test_conservation() -> None:
    before = T([4, 0, 2, 3, 1])
    check_token_conservation(before, T([2, 4]), T([3, 0, 1]))
    for after, said in (
        ([0, 1], "lost \\[3\\]"),
        ([0, 1, 3, 4], "kept though evicted \\[4\\]"),
        ([0, 1, 3, 3], "duplicated \\[3\\]"),
    ):
        with pytest.raises(InvariantViolation, match=said):
            check_token_conservation(before, T([2, 4]), T(after))
    with pytest.raises(InvariantViolation, match="were not live"):
        check_token_conservation(before, T([9]), before)


def test_unique_slots() -> None:
    check_unique_live_slots([T([0, 5]), T([1])], 8)
    check_unique_live_slots([], 8)
    with pytest.raises(InvariantViolation, match=r"\[5\]"):
        check_unique_live_slots([T([0, 5]), T([5])], 8)
    for slot in (8, -1):
        with pytest.raises(InvariantViolation, match="outside"):
            check_unique_live_slots([T([slot])], 8)


def test_copy_before_read() -> None:
    check_copy_before_read(T([1, 2]), [T([3]), T([4])])
    with pytest.raises(InvariantViolation, match=r"\[2\]"):
        check_copy_before_read(T([1, 2]), [T([3]), T([2, 4])])


def test_snapshot() -> None:
    check_consistent_snapshot((3, 1), [3, 1])
    with pytest.raises(InvariantViolation, match="planned at"):
        check_consistent_snapshot((3, 1), (3, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.uint8])
def test_content_hash_sees_every_byte(dtype: torch.dtype) -> None:
    kv = torch.arange(64).remainder(7).to(dtype).view(2, 32)
    kv[1] = kv[0]
    one, other = content_hash(kv).tolist()
    assert one == other
    for at in range(32):
        changed = kv.clone()
        changed[1, at] += 1
        assert content_hash(changed)[1] != one
    swapped = kv[:1].clone()
    swapped[0, 0], swapped[0, 1] = kv[0, 1], kv[0, 0]
    assert int(content_hash(swapped)[0]) != one, "order matters"
