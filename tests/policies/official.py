"""The scores of the published policies, written from their sources, head by head, token by token.

Everything here works on whole attention matrices in float64 and shares no code with the product.
Layers and heads are averaged at the end, which is the one deviation all built-in policies have.

attention: ``[layers, heads, n, n]``, row = query; keys: ``[layers, n, kv_heads, head_size]``.
"""

from __future__ import annotations

import numpy as np


def h2o(attention: np.ndarray) -> np.ndarray:
    """FMInference/H2O: what every query gave so far, summed up row by row."""
    layers, heads, n, _ = attention.shape
    total = np.zeros(n)
    for layer in range(layers):
        for head in range(heads):
            previous = np.zeros(n)
            for query in range(n):
                previous += attention[layer, head, query]
            total += previous
    return total / (layers * heads)


def h2o_per_query(attention: np.ndarray) -> np.ndarray:
    """The same, divided by how many queries could see the token."""
    n = attention.shape[-1]
    return h2o(attention) / np.arange(n, 0, -1)


def scissorhands_code(attention: np.ndarray, window: int) -> np.ndarray:
    """hf_opt_dropkv.py at the step after the last row, on attention averaged over heads."""
    rows = attention.mean((0, 1))
    n = len(rows)
    counts = np.zeros(n)
    for query in range(max(n - window, 0), n):
        threshold = sorted(rows[query])[int(0.9 * n)]
        for token in range(n):
            counts[token] += rows[query, token] > threshold
    return counts


def scissorhands_paper(attention: np.ndarray, window: int) -> np.ndarray:
    """Minus the number of queries that gave less than 1/t, t being the tokens they could see."""
    rows = attention.mean((0, 1))
    n = len(rows)
    counts = np.zeros(n)
    for query in range(max(n - window, 0), n):
        for token in range(query + 1):
            counts[token] -= rows[query, token] < 1 / (query + 1)
    return counts


def snapkv(attention: np.ndarray, window: int, kernel: int = 5) -> np.ndarray:
    """snapkv_utils.py: the window's attention to what is before it, pooled; the window stays."""
    layers, heads, n, _ = attention.shape
    total = np.zeros(n - window)
    for layer in range(layers):
        for head in range(heads):
            summed = attention[layer, head, -window:, :-window].sum(0)
            padded = np.pad(summed, kernel // 2)
            total += [padded[i : i + kernel].sum() / kernel for i in range(n - window)]
    return np.append(total / (layers * heads), np.full(window, np.inf))


def tova(attention: np.ndarray) -> np.ndarray:
    """tova_cache.py: the last query's attention, mean over heads."""
    return attention[:, :, -1].mean((0, 1))


def knorm(keys: np.ndarray) -> np.ndarray:
    """knorm_press.py: minus the length of the key."""
    lengths = [[np.sqrt((key**2).sum(-1)).mean() for key in layer] for layer in keys]
    return -np.mean(lengths, axis=0)


def keydiff(keys: np.ndarray) -> np.ndarray:
    """keydiff_press.py: minus the cosine to the mean of the normalized keys."""
    layers, n, heads, _ = keys.shape
    total = np.zeros(n)
    for layer in range(layers):
        for head in range(heads):
            own = keys[layer, :, head]
            anchor = np.mean([key / np.linalg.norm(key) for key in own], axis=0)
            for token in range(n):
                total[token] -= _cosine(own[token], anchor)
    return total / (layers * heads)


def r_kv(rows: np.ndarray, keys: np.ndarray, window: int = 8, mix: float = 0.1) -> np.ndarray:
    """r1_kv.py: importance of the older tokens minus their redundancy; the window stays.

    Args:
        rows: What the last queries give to all tokens but those of the window, ``[window, n -
            window]``, each row adding up to 1.
        keys: As above.
        window: Last queries.
        mix: Lambda.
    """
    importance = rows.mean(0)
    padded = np.pad(importance, 3, constant_values=-np.inf)
    pooled = np.array([padded[i : i + 7].max() for i in range(len(importance))])
    layers, n, heads, _ = keys.shape
    repeated = np.zeros(n)
    for layer in range(layers):
        for head in range(heads):
            repeated += cal_similarity(keys[layer, :, head])
    score = mix * pooled - (1 - mix) * (repeated / (layers * heads))[: n - window]
    return np.append(score, np.full(window, np.inf))


def cal_similarity(keys: np.ndarray, threshold: float = 0.5) -> np.ndarray:
    """rkv/utils.py with retain_direction="last", for one head ``[n, head_size]``."""
    n = len(keys)
    units = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    cosine = units @ units.T
    for i in range(n):
        cosine[i, i] = 0.0
    for i in range(n):
        # Where nothing is similar, the official maximum over zeros is the first token.
        cosine[i, max(np.flatnonzero(cosine[i] > threshold), default=0)] = 0.0
    exponentials = np.exp(cosine.mean(0))
    return exponentials / exponentials.sum()


def renormalized(attention: np.ndarray, window: int) -> np.ndarray:
    """Rows for :func:`r_kv` from attention averaged over layers and heads."""
    rows = attention.mean((0, 1))[-window:, :-window]
    return rows / rows.sum(1, keepdims=True)


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
