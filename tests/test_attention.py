"""The attention and key signals, on caches of every layout, against plain attention."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch

from tests.no_sync import NoSync
from vtoken_sdk import ScoringPolicy, Signal
from vtoken_sdk.attention import (
    GATHER_ELEMENTS,
    QUERY_BLOCK,
    attention_rows,
    chunk_mass,
    decode_mass,
)
from vtoken_sdk.cut import SequenceCut
from vtoken_sdk.errors import PolicyError
from vtoken_sdk.keys import ScatteredKeys, StridedKeys, gather_keys
from vtoken_sdk.recorder import MassRecorder, ScoredLayer, Step, WindowRecorder
from vtoken_sdk.relocate import StridedKV
from vtoken_sdk.runtime import VTokenRuntime
from vtoken_sdk.signals import CutSignals, SignalSource
from vtoken_sdk.table import TokenTable
from vtoken_sdk.view import LiveTokens, Moment

S, BLOCKS, KV_HEADS, GROUP, DIM, LAYERS = 4, 64, 2, 3, 8, 2
HEADS, SCALE = KV_HEADS * GROUP, 0.3


def make_keys(layout: str, seed: int = 0):
    """Keys ``[BLOCKS, S, KV_HEADS, DIM]`` and a reader of a cache in which they lie."""
    torch.manual_seed(seed)
    keys = torch.randn(BLOCKS, S, KV_HEADS, DIM)
    if layout == "rows":  # [block, head, slot, key and value], as on GPUs
        cache = torch.zeros(BLOCKS, KV_HEADS, S, 2 * DIM)
        cache[..., :DIM] = keys.transpose(1, 2)
        return keys, StridedKeys(cache.transpose(1, 2)[..., :DIM])
    if layout == "transposed":  # [block, head, element, slot], as vLLM's vector kernels on CPUs
        cache = torch.zeros(BLOCKS, KV_HEADS, 2, DIM, S)
        cache[:, :, 0] = keys.permute(0, 2, 3, 1)
        return keys, StridedKeys(cache[:, :, 0].permute(0, 3, 1, 2))
    order = torch.randperm(S * 2 * KV_HEADS * DIM)  # anywhere
    offsets = order.view(S, 2, KV_HEADS, DIM)[:, 0]
    cache = torch.zeros(BLOCKS, order.numel())
    cache[:, offsets.flatten()] = keys.flatten(1)
    return keys, ScatteredKeys(cache.view(-1), offsets, order.numel())


layouts = pytest.mark.parametrize("layout", ["rows", "transposed", "scattered"])


def plain(query: torch.Tensor, keys: torch.Tensor, first: int) -> torch.Tensor:
    """Attention ``[T, n]``, mean over heads, one query and one head at a time.

    ``keys`` is ``[n, KV_HEADS, DIM]``.
    """
    rows = torch.zeros(len(query), len(keys))
    for i, head in itertools.product(range(len(query)), range(HEADS)):
        scores = keys[: first + i + 1, head // GROUP] @ query[i, head] * SCALE
        rows[i, : first + i + 1] += scores.softmax(0) / HEADS
    return rows


@layouts
def test_keys_come_in_dense_order(layout) -> None:
    keys, reader = make_keys(layout)
    assert (reader.block_size, reader.shape) == (S, (KV_HEADS, DIM))
    tables = torch.tensor([[5, 0, 63], [7, 8, 9]], dtype=torch.int32)
    gathered = gather_keys(reader, tables)
    assert gathered.shape == (KV_HEADS, 2, DIM, 3 * S)
    want = keys[tables.long()].flatten(1, 2).permute(2, 0, 3, 1)
    assert torch.equal(gathered, want)


@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 5), (7, 1), (7, 9), (100, 150), (0, 130)])
def test_chunks_equal_plain_attention(first, count) -> None:
    torch.manual_seed(first + count)
    keys = torch.randn(first + count, KV_HEADS, DIM)
    query = torch.randn(count, HEADS, DIM)
    want = plain(query, keys, first)
    dense = keys.permute(1, 2, 0)
    torch.testing.assert_close(attention_rows(query, dense, SCALE, first), want)
    torch.testing.assert_close(chunk_mass(query, dense, SCALE, first), want.sum(0))


def test_a_chunk_never_holds_all_scores_at_once(monkeypatch) -> None:
    import vtoken_sdk.attention as module

    seen = []
    real = module._probabilities

    def watched(query, keys, scale, first):
        seen.append(len(query))
        return real(query, keys, scale, first)

    monkeypatch.setattr(module, "_probabilities", watched)
    chunk_mass(torch.randn(500, HEADS, DIM), torch.randn(KV_HEADS, DIM, 537), SCALE, 37)
    assert sum(seen) == 500
    assert max(seen) <= QUERY_BLOCK


def decode_functions(layout):
    yield decode_mass
    if layout == "transposed":
        pytest.importorskip("numba")
        from vtoken_sdk.attention_numba import NumbaDecode

        yield NumbaDecode(make_keys(layout)[1], HEADS)


@layouts
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_decoding_equals_plain_attention(layout, dtype, monkeypatch) -> None:
    keys, reader = make_keys(layout)
    keys = keys.to(dtype)
    if isinstance(reader, StridedKeys):
        reader = StridedKeys(reader.view.to(dtype))
    else:
        reader = ScatteredKeys(reader.storage.to(dtype), reader.offsets, reader.block_elements)
    lengths = [1, 4, 5, 23]
    query = torch.randn(len(lengths), HEADS, DIM).to(dtype)
    tables = torch.randperm(BLOCKS)[: 4 * 7].view(4, 7).int()
    for decode in decode_functions(layout):
        if decode is not decode_mass and dtype is torch.float16:
            continue  # refused by fits()
        mass = decode(query, reader, tables, lengths, SCALE)
        assert mass.shape == (4, 6 * S)
        for row, n in enumerate(lengths):
            own = keys[tables[row].long()].flatten(0, 1)[:n].float()
            want = plain(query[row : row + 1].float(), own, n - 1)[0]
            torch.testing.assert_close(mass[row, :n], want)
            assert not mass[row, n:].any()


def test_large_decode_batches_are_scored_in_parts(monkeypatch) -> None:
    _, reader = make_keys("rows")
    query, tables = torch.randn(5, HEADS, DIM), torch.arange(10).view(5, 2)
    whole = decode_mass(query, reader, tables, [5, 6, 7, 8, 1], SCALE)
    monkeypatch.setitem(GATHER_ELEMENTS, "cpu", 1)
    parts = decode_mass(query, reader, tables, [5, 6, 7, 8, 1], SCALE)
    torch.testing.assert_close(parts, whole)


def test_the_compiled_loop_refuses_what_it_cannot_read() -> None:
    pytest.importorskip("numba")
    from vtoken_sdk.attention_numba import fits

    assert fits(make_keys("transposed")[1])
    assert not fits(make_keys("rows")[1])
    assert not fits(make_keys("scattered")[1])
    assert not fits(StridedKeys(make_keys("transposed")[1].view.half()))


class Engine:
    """Sequences in a made-up cache, fed to a recorder in steps of any size."""

    def __init__(self, make, layout: str = "rows", seed: int = 0) -> None:
        pairs = [make_keys(layout, seed + i) for i in range(LAYERS)]
        self.keys = [keys.flatten(0, 1) for keys, _ in pairs]
        self.layers = [ScoredLayer(reader, SCALE, HEADS, torch.float32) for _, reader in pairs]
        self.recorder = make(self.layers)
        self.table = torch.randperm(BLOCKS).view(4, -1)
        torch.manual_seed(seed)
        self.queries = torch.randn(4, LAYERS, S * BLOCKS // 4, HEADS, DIM)
        self.length = [0] * 4

    def step(self, queries: dict[int, int]) -> None:
        """Compute tokens of some rows."""
        for row, count in queries.items():
            self.length[row] += count
        lengths = [self.length[row] for row in queries]
        step = Step(list(queries), list(queries.values()), lengths, self.table[list(queries)])
        self.recorder.begin(step)
        for layer in range(LAYERS):
            parts = [
                self.queries[row, layer, n - count : n]
                for (row, count), n in zip(queries.items(), lengths, strict=True)
            ]
            padding = torch.full((2, HEADS, DIM), torch.nan)
            self.recorder.record(layer, torch.cat([*parts, padding]))
        self.recorder.end()

    def read(self, row: int) -> torch.Tensor:
        return self.recorder.read(row, self.length[row], self.table[row])

    def rows(self, row: int, start: int = 0) -> torch.Tensor:
        """What each query since ``start`` gave, mean over layers, ``[n - start, n]``."""
        n = self.length[row]
        slots = (self.table[row][:, None] * S + torch.arange(S)).flatten()[:n]
        layers = [
            plain(self.queries[row, layer, start:n], self.keys[layer][slots], start)
            for layer in range(LAYERS)
        ]
        return torch.stack(layers).mean(0)


def summed(layers):
    return MassRecorder(layers, "cpu")


def window(size: int):
    return lambda layers: WindowRecorder(layers, size, "cpu")


STEPS = [{0: 5, 2: 1}, {0: 1, 1: 30, 2: 1}, {2: 7, 1: 1, 0: 1}, {0: 1, 1: 1, 2: 1}, {3: 2}]


@layouts
def test_masses_add_up_over_steps(layout) -> None:
    engine = Engine(summed, layout)
    for step in STEPS:
        engine.step(step)
    for row in range(4):
        torch.testing.assert_close(engine.read(row), engine.rows(row).sum(0))
        assert engine.recorder.num_queries(row, engine.length[row]) == engine.length[row]


@pytest.mark.parametrize("size", [1, 3, 8, 64])
def test_windows_hold_the_last_queries(size) -> None:
    engine = Engine(window(size))
    for step in STEPS:
        engine.step(step)
        for row in step:
            n = engine.length[row]
            want = torch.zeros(size, n)
            kept = min(size, n)
            want[size - kept :] = engine.rows(row)[-kept:]
            torch.testing.assert_close(engine.read(row), want)


@pytest.mark.parametrize("make", [summed, window(5)])
def test_steps_may_be_of_any_size(make) -> None:
    first, second = Engine(make), Engine(make)
    first.step({0: 40, 1: 17})
    for sizes in ({1: 16, 0: 1}, {0: 31}, {0: 8, 1: 1}):
        second.step(sizes)
    for row in (0, 1):
        torch.testing.assert_close(first.read(row), second.read(row))


@pytest.mark.parametrize(("make", "size"), [(summed, None), (window(5), 5)])
def test_clearing_starts_anew(make, size) -> None:
    engine = Engine(make)
    engine.step({0: 9, 1: 9})
    engine.recorder.clear(0, 9)  # a cut that evicts nothing, so that lengths stay comparable
    assert engine.recorder.num_queries(0, 9) == 0
    assert not engine.read(0).any()
    engine.step({0: 1, 1: 1})
    engine.step({0: 2, 1: 1})
    assert engine.recorder.num_queries(0, 12) == 3
    rows = engine.rows(0, start=9)
    if size is None:
        torch.testing.assert_close(engine.read(0), rows.sum(0))
        torch.testing.assert_close(engine.read(1), engine.rows(1).sum(0))
    else:
        assert not engine.read(0)[: size - 3].any()
        torch.testing.assert_close(engine.read(0)[-3:], rows)
    engine.recorder.clear(0, 0)  # the sequence is gone, its row is given to another one
    engine.length[0] = 0
    engine.step({0: 3})
    assert engine.recorder.num_queries(0, 3) == 3
    total = engine.read(0) if size is None else engine.read(0).sum(0)
    torch.testing.assert_close(total, engine.rows(0).sum(0))


@pytest.mark.parametrize(("make", "size"), [(summed, None), (window(5), 5)])
def test_what_was_found_in_the_prefix_cache_asked_nothing(make, size) -> None:
    """The row's former sequence left queries behind; the new one begins with 9 cached tokens."""
    engine = Engine(make)
    engine.step({0: 9})
    engine.recorder.clear(0, 0)
    assert engine.recorder.num_queries(0, 9) == 0
    assert not engine.read(0).any()
    engine.step({0: 3})
    assert engine.recorder.num_queries(0, 12) == 3
    rows = engine.rows(0, start=9)
    got = engine.read(0)
    torch.testing.assert_close(
        got if size is None else got[-3:], rows.sum(0) if size is None else rows
    )
    if size is not None:
        assert not got[:-3].any()


@pytest.mark.parametrize("make", [summed, window(5)])
def test_a_row_no_step_has_computed_received_nothing(make) -> None:
    engine = Engine(make)
    assert engine.recorder.num_queries(7, 20) == 0
    read = engine.recorder.read(7, 20, engine.table[0])
    assert read.shape[-1] == 20
    assert not read.any()


@pytest.mark.parametrize("make", [summed, window(5)])
def test_recording_never_waits_for_the_device(make) -> None:
    engine = Engine(make, "transposed")
    with NoSync():
        for step in STEPS:
            engine.step(step)
        read = engine.read(0)
        engine.recorder.clear(0, engine.length[0])
    assert read.any()


@dataclass
class Attends(ScoringPolicy):
    name = "attends"
    signals = {Signal.ATTENTION, Signal.KEYS}

    def score(self, seq):
        return seq.attention


@dataclass
class Deaf(ScoringPolicy):
    name = "deaf"


def test_views_show_what_is_declared_and_nothing_else() -> None:
    engine = Engine(summed)
    engine.step({0: 9, 1: 5})
    engine.recorder.clear(1, 5)
    engine.step({0: 2, 1: 2})
    table = TokenTable(S)
    rows = [table.row("b"), table.row("a")][::-1]
    assert rows == [1, 0]
    table.sync(rows, [7, 11])
    source = SignalSource(tuple(layer.keys for layer in engine.layers), engine.recorder)
    signals = CutSignals(source, rows, [7, 11], engine.table[rows])
    moments = [Moment(7), Moment(11)]
    view = LiveTokens(table, rows, moments, Attends(), signals)
    torch.testing.assert_close(view.attention, torch.cat([engine.read(1), engine.read(0)]))
    assert view.query_count.tolist() == [2, 2, 2, 2, 2, 2, 1, *range(11, 0, -1)]
    assert view.num_layers == LAYERS
    slots = (engine.table[rows][:, :, None] * S + torch.arange(S)).flatten(1)
    want = torch.cat([engine.keys[1][slots[0, :7]], engine.keys[1][slots[1, :11]]])
    assert torch.equal(view.keys(1), want)
    for read in ("attention", "query_count", "num_layers"):
        with pytest.raises(PolicyError, match=f"'deaf' read seq.{read} but does not declare"):
            getattr(LiveTokens(table, rows, moments, Deaf(), signals), read)
    with pytest.raises(PolicyError, match=r"seq.keys\(0\) but does not declare .*Signal.KEYS"):
        LiveTokens(table, rows, moments, Deaf(), signals).keys(0)
    with pytest.raises(PolicyError, match=r"this engine does not offer seq\.attention"):
        _ = LiveTokens(table, rows, moments, Attends()).attention


def test_a_policy_that_writes_into_a_signal_changes_nothing() -> None:
    engine = Engine(summed)
    engine.step({0: 9})
    before = engine.read(0)
    engine.read(0).zero_()
    assert torch.equal(engine.read(0), before)


def test_cuts_read_the_signal_and_clear_it() -> None:
    engine = Engine(summed)
    engine.step({0: 12})
    source = SignalSource((engine.layers[0].keys,), engine.recorder)
    runtime = VTokenRuntime(Attends(sinks=0), S, source=source)
    assert runtime.table.row("a") == 0
    mass = engine.read(0)
    kv = StridedKV((torch.zeros(1, BLOCKS, S, 1),))
    result = runtime.cut([SequenceCut("a", 4, Moment(12))], engine.table[:1], kv)
    assert (
        sorted(result.victims[0].tolist()) == mass.topk(4, largest=False).indices.sort()[0].tolist()
    )
    assert engine.recorder.num_queries(0, 8) == 0
    assert not engine.recorder.read(0, 8, engine.table[0]).any()
    runtime.forget("a")
    assert engine.recorder.num_queries(0, 0) == 0
