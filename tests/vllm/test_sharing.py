"""Who moves out of shared blocks: pure arithmetic, no engine."""

from __future__ import annotations

from vtoken_sdk.vllm.sharing import Sharer, worth_repacking


def group(names: str, first: int, shared: int, leaving: int) -> list[Sharer]:
    return [Sharer(name, tuple(range(first, first + shared)), leaving) for name in names]


def owners(sharers: list[Sharer], more: int = 0) -> dict[int, int]:
    counts: dict[int, int] = {}
    for sharer in sharers:
        for block in sharer.shared:
            counts[block] = counts.get(block, 0) + 1
    return {block: count + more for block, count in counts.items()}


def test_who_needs_no_fresh_block_always_leaves() -> None:
    sharers = group("ab", 0, shared=5, leaving=6)
    assert worth_repacking(sharers, owners(sharers, more=3), free_blocks=0) == {"a", "b"}


def test_two_leave_twenty_blocks_for_ten_and_four_do_not_for_twenty() -> None:
    for names, chosen in (("ab", {"a", "b"}), ("abcd", set())):
        sharers = group(names, 0, shared=20, leaving=15)
        assert worth_repacking(sharers, owners(sharers), free_blocks=100) == chosen


def test_a_reader_that_is_not_cut_keeps_the_blocks_allocated() -> None:
    sharers = group("ab", 0, shared=20, leaving=15)
    assert not worth_repacking(sharers, owners(sharers, more=1), free_blocks=100)


def test_a_group_is_taken_whole_or_not_at_all() -> None:
    sharers = group("ab", 0, shared=20, leaving=15)
    assert not worth_repacking(sharers, owners(sharers), free_blocks=9)
    assert worth_repacking(sharers, owners(sharers), free_blocks=10) == {"a", "b"}


def test_the_group_that_gains_most_gets_the_free_blocks() -> None:
    sharers = group("ab", 0, shared=20, leaving=15) + group("cd", 50, shared=40, leaving=35)
    assert worth_repacking(sharers, owners(sharers), free_blocks=12) == {"c", "d"}


def test_one_that_leaves_anyway_counts_as_a_leaver_of_its_group() -> None:
    """Its shorter text needs no fresh block, and what only it still read is free then."""
    sharers = [*group("a", 0, shared=8, leaving=9), *group("b", 0, shared=8, leaving=5)]
    assert worth_repacking(sharers, owners(sharers), free_blocks=3) == {"a", "b"}
