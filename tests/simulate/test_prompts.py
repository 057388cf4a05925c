"""Lengths that behave like lists, and hashes that are equal where prompts are."""

from __future__ import annotations

from types import SimpleNamespace

from vtoken_sdk.simulate.prompts import Length, PrefixHasher

S = 16


def test_a_length_is_a_list_of_zeros():
    tokens = Length(10)
    copy = tokens.copy()
    copy.append(5)
    copy.extend([1, 2])
    assert (len(tokens), len(copy)) == (10, 13)
    assert tokens[2:5] == [0, 0, 0]
    assert tokens[-1] == 0
    assert list(tokens) == [0] * 10


def hashes(hasher: PrefixHasher, name: str, prompt: int, ids=(), chunk=0, generated=0):
    request = SimpleNamespace(block_hashes=[], num_tokens=prompt)
    of = hasher.of(name, prompt, ids, chunk)
    request.block_hashes += of(request)
    request.num_tokens += generated
    request.block_hashes += of(request)
    return request.block_hashes


def test_blocks_are_equal_up_to_the_first_other_chunk():
    hasher = PrefixHasher(S)
    a = hashes(hasher, "a", 96, (1, 2, 3), 32)
    b = hashes(hasher, "b", 96, (1, 2, 4), 32)
    c = hashes(hasher, "c", 96, (5, 2, 3), 32)
    assert len(a) == 6
    assert a[:4] == b[:4]
    assert set(a[4:]).isdisjoint(b)
    assert set(a).isdisjoint(c)


def test_a_block_belongs_to_the_chunk_it_ends_in():
    hasher = PrefixHasher(S)
    a = hashes(hasher, "a", 48, (1, 2, 3), 20)
    b = hashes(hasher, "b", 48, (1, 2, 4), 20)
    assert a[:2] == b[:2]
    assert a[2] != b[2]


def test_what_is_generated_or_has_no_ids_is_nobody_else_s():
    hasher = PrefixHasher(S)
    a = hashes(hasher, "a", 40, (1, 2), 32, generated=30)
    b = hashes(hasher, "b", 40, (1, 2), 32, generated=30)
    assert len(a) == 4
    assert a[:2] == b[:2]
    assert set(a[2:]).isdisjoint(b)
    assert set(hashes(hasher, "c", 64)).isdisjoint(hashes(hasher, "d", 64))
    assert hashes(hasher, "c", 64) == hashes(hasher, "c", 64)
