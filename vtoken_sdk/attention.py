"""How much attention each live token receives: ``softmax(q k^T * scale)``, never n^2 in full.

Query heads that share a KV head are stacked against it, so keys are never expanded. Queries of a
prefill chunk are taken in blocks: memory grows with the length of the sequence, not its square.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vtoken_sdk.keys import gather_keys
from vtoken_sdk.tensors import ceil_div, upload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from vtoken_sdk.keys import LayerKeys

QUERY_BLOCK = 64
"""Queries scored at once; measured twice as fast as 512, whose scores leave the CPU's cache."""
GATHER_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Elements of keys copied at once for a decode batch, by device. On a CPU the copies should stay in
its cache (three times as fast as 1 << 24 at batch 64), elsewhere they should not fill memory."""


def attention_rows(query: Tensor, keys: Tensor, scale: float, first: int) -> Tensor:
    """What each query gives to each token.

    Args:
        query: Rotated, not scaled, ``[T, query_heads, head_size]``.
        keys: ``[kv_heads, head_size, n]`` in dense order.
        scale: The factor of the attention layer.
        first: Dense index of the first query; the others follow. ``first + T <= n``.

    Returns:
        Mean over query heads, float32 ``[T, n]``; zero for tokens after the query.
    """
    return _probabilities(query, keys, scale, first).mean((0, 1))


def chunk_mass(query: Tensor, keys: Tensor, scale: float, first: int) -> Tensor:
    """What the queries of a chunk give to each token in sum.

    Args:
        query: Rotated, not scaled, ``[T, query_heads, head_size]``.
        keys: ``[kv_heads, head_size, n]`` in dense order, ``n = first + T``.
        scale: The factor of the attention layer.
        first: Dense index of the first query.

    Returns:
        Mean over query heads, sum over queries, float32 ``[n]``.
    """
    mass = torch.zeros(keys.shape[2], device=keys.device)
    keys = keys.float()
    for start, end in _query_blocks(first, first + len(query)):
        block = query[start - first : end - first]
        given = _probabilities(block, keys[:, :, :end], scale, start)
        mass[:end] += given.sum((0, 1, 2)) / query.shape[1]
    return mass


def decode_mass(
    query: Tensor, keys: LayerKeys, tables: Tensor, lengths: Sequence[int], scale: float
) -> Tensor:
    """What the newest token of each sequence gives to the sequence's tokens.

    Args:
        query: One per sequence, ``[R, query_heads, head_size]``.
        keys: The layer's cache.
        tables: Block ids, ``[R, >= blocks]``.
        lengths: Dense lengths, the newest token included.
        scale: The factor of the attention layer.

    Returns:
        Mean over query heads, float32 ``[R, blocks * S]``, blocks being those of the longest
        sequence; zero beyond a sequence's length.
    """
    heads, head_size = keys.shape
    width = ceil_div(max(lengths), keys.block_size)
    most = GATHER_ELEMENTS.get(query.device.type, 1 << 20)
    step = max(1, most // (heads * head_size * width * keys.block_size))
    limit = upload(lengths, query.device)[:, None]
    beyond = torch.arange(width * keys.block_size, device=query.device) >= limit
    parts = [
        _decode_part(
            query[at : at + step],
            gather_keys(keys, tables[at : at + step, :width]),
            beyond[at : at + step],
            scale,
        )
        for at in range(0, len(lengths), step)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode_part(query: Tensor, keys: Tensor, beyond: Tensor, scale: float) -> Tensor:
    """Scores head by head, because the gathered keys keep heads apart."""
    heads = keys.shape[0]
    grouped = query.float().view(len(query), heads, -1, query.shape[-1])
    mass = torch.zeros(beyond.shape, device=query.device)
    for head in range(heads):
        scores = torch.bmm(grouped[:, head] * scale, keys[head].float())
        mass += scores.masked_fill_(beyond[:, None], -torch.inf).softmax(-1).sum(1)
    return mass / query.shape[1]


def _probabilities(query: Tensor, keys: Tensor, scale: float, first: int) -> Tensor:
    """Attention of a block of queries, float32 ``[kv_heads, group, T, n]``."""
    heads, _, n = keys.shape
    count, all_heads, head_size = query.shape
    grouped = query.float().view(count, heads, all_heads // heads, head_size).permute(1, 2, 0, 3)
    scores = torch.bmm(grouped.flatten(1, 2) * scale, keys.float())
    scores = scores.view(heads, all_heads // heads, count, n)
    ahead = torch.arange(n - first - 1, device=query.device)
    late = ahead >= torch.arange(count, device=query.device)[:, None]
    scores[..., first + 1 :].masked_fill_(late, -torch.inf)
    return scores.softmax(-1)


def _query_blocks(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Blocks that begin at multiples of the block size, wherever a chunk begins."""
    while first < end:
        stop = min(end, (first // QUERY_BLOCK + 1) * QUERY_BLOCK)
        yield first, stop
        first = stop
