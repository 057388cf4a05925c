"""copy_kv and Relocator: every layout and dtype against a loop over tokens, modes, the kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from tests.conftest import ROOT, Run
from tests.kv_layouts import (
    BLOCKS,
    DTYPES,
    LAYERS,
    LAYOUTS,
    SLOTS,
    copy_one_by_one,
    make_layout,
)
from vtoken_sdk import kv_rows, relocate
from vtoken_sdk.bench.caches import ORDERS, memory_of
from vtoken_sdk.kv_rows import Lanes, Rows
from vtoken_sdk.relocate import (
    KVLayout,
    Mode,
    Relocator,
    ScatteredKV,
    StridedKV,
    copy_kv,
    gather_kv,
)

TOTAL = BLOCKS * SLOTS


def moves(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Moves to other slots, some of them to a slot that an earlier move has left, or to itself."""
    order = torch.randperm(TOTAL, generator=torch.Generator().manual_seed(seed))
    sources, destinations = order[:count].clone(), order[count : 2 * count].clone()
    destinations[count // 2] = sources[0]  # left by the first move
    destinations[-1] = sources[-1]
    return sources, destinations


def check_against_loop(name: str, dtype: str) -> None:
    torch.manual_seed(0)
    layout, (sources, destinations) = make_layout(name, dtype), moves(10)
    before = [memory.clone() for memory in memory_of(layout)]
    copy_one_by_one(layout, sources.tolist(), destinations.tolist())
    expected = [memory.clone() for memory in memory_of(layout)]
    for memory, old in zip(memory_of(layout), before, strict=True):
        memory.copy_(old)
    copy_kv(layout, sources, destinations)
    for got, want, old in zip(memory_of(layout), expected, before, strict=True):
        assert torch.equal(got, want)
        assert not torch.equal(got, old), "nothing was copied"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_and_dtype(name: str, dtype: str) -> None:
    check_against_loop(name, dtype)


@pytest.mark.parametrize("workspace", [1, 100, 1000])
@pytest.mark.parametrize("name", ["LBHNC", "layers apart", "cpu-vec", "cpu-amx"])
def test_copies_by_parts_are_the_same(
    name: str, workspace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_rows, "CPU_WORKSPACE", workspace)
    check_against_loop(name, "float16")


@pytest.mark.parametrize("name", LAYOUTS)
def test_parts_cover_a_token_once(name: str) -> None:
    layout = make_layout(name, "float32")
    bytes_of_token = sum(part.token_bytes for part in layout.parts)
    assert bytes_of_token == gather_kv(layout, torch.tensor([0])).numel() * 4
    spare = 4 if name == "offset" else 0
    assert bytes_of_token * TOTAL + spare == sum(memory.numel() for memory in memory_of(layout))


@pytest.mark.parametrize(
    ("name", "rows", "row_bytes"),
    [
        ("LBHNC", LAYERS * 2, 32),
        ("LBNHC", LAYERS, 64),
        ("BLNHC", LAYERS, 64),
        ("BHLNC", LAYERS * 2, 32),
    ],
)
def test_rows_are_as_wide_as_the_layout_allows(name: str, rows: int, row_bytes: int) -> None:
    (part,) = make_layout(name, "float32").parts
    assert isinstance(part, Rows)
    assert (len(part.pieces), part.row_bytes) == (rows, row_bytes)
    assert part.stores[0].dtype == torch.complex128


def test_layers_apart_share_their_indices() -> None:
    (part,) = make_layout("layers apart", "float32").parts
    assert isinstance(part, Rows)
    assert len(part.stores) == LAYERS


def test_neighbouring_elements_are_found_in_a_probed_layout() -> None:
    layout = make_layout("cpu-amx", "bfloat16")
    assert isinstance(layout, ScatteredKV)
    assert [part.row_bytes for part in layout.parts] == [2]  # values lie singly
    keys = layout.offsets.view(SLOTS, 2, -1)[:, 0]
    only_keys = ScatteredKV(layout.storages, keys, layout.block_elements)
    assert [part.row_bytes for part in only_keys.parts] == [4]  # keys in pairs


def test_transposed_keys_are_indexed_by_slot() -> None:
    kinds = {type(part) for part in make_layout("cpu-vec", "float32").parts}
    assert kinds == {Lanes, Rows}


def test_no_moves() -> None:
    none = torch.empty(0, dtype=torch.int64)
    for name in LAYOUTS:
        layout = make_layout(name, "float32")
        before = [memory.clone() for memory in memory_of(layout)]
        copy_kv(layout, none, none)
        assert all(map(torch.equal, memory_of(layout), before))


def test_a_cache_of_another_runtime_may_be_an_inference_tensor() -> None:
    with torch.inference_mode():
        layout = StridedKV((torch.rand(LAYERS, BLOCKS, SLOTS, 2, 8),))
        expected = layout.views[0][:, 0, 1].clone()
        copy_kv(layout, torch.tensor([1]), torch.tensor([9]))
        assert torch.equal(layout.views[0][:, 2, 1], expected)


class TestModes:
    @pytest.mark.parametrize("mode", list(Mode))
    def test_on_a_cpu_all_are_done_on_return(self, mode: Mode) -> None:
        layout, (sources, destinations) = make_layout("LBNHC", "uint8"), moves(4)
        expected = gather_kv(layout, sources)
        relocator = Relocator(layout, mode.value)
        relocator.copy(sources, destinations)
        assert not relocator.pending
        relocator.wait_before_read()
        assert torch.equal(gather_kv(layout, destinations), expected)

    def test_unknown_modes_are_refused(self) -> None:
        with pytest.raises(ValueError, match="later"):
            Relocator(make_layout("LBNHC", "float32"), "later")

    def test_staged_waits_for_what_was_launched_and_is_waited_for_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = record_streams(monkeypatch)
        relocator = Relocator(on_cuda(), "staged")
        relocator.wait_before_read()
        assert log == []  # nothing is pending
        relocator.copy(FakeSlots(log), FakeSlots(log))  # type: ignore[arg-type]
        assert relocator.pending
        assert log == [
            "relocation waits for compute",
            "copy on relocation",
            "event on relocation",
            "slots kept for relocation",
            "slots kept for relocation",
        ]
        log.clear()
        relocator.wait_before_read()
        relocator.wait_before_read()
        assert log == ["compute waits for event"]
        assert not relocator.pending

    def test_stream_and_sync_copy_in_the_compute_stream(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = record_streams(monkeypatch)
        Relocator(on_cuda(), "stream").copy(FakeSlots(log), FakeSlots(log))  # type: ignore[arg-type]
        assert log == ["copy on compute"]
        Relocator(on_cuda(), "sync").copy(FakeSlots(log), FakeSlots(log))  # type: ignore[arg-type]
        assert log == ["copy on compute", "copy on compute", "host waits"]


class FakeLayout:
    device = torch.device("cuda")


def on_cuda() -> KVLayout:
    return FakeLayout()  # type: ignore[return-value]


class FakeSlots:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def record_stream(self, stream: FakeStream) -> None:
        self.log.append(f"slots kept for {stream.name}")


class FakeStream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")

    def record_event(self) -> str:
        self.log.append(f"event on {self.name}")
        return "event"


def record_streams(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand-ins for CUDA's streams that write down what is asked of them."""
    log: list[str] = []
    current = [FakeStream("compute", log)]

    @contextlib.contextmanager
    def within(stream: FakeStream) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream("relocation", log))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", within)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: log.append("host waits"))
    monkeypatch.setattr(relocate, "copy_kv", lambda *_: log.append(f"copy on {current[-1].name}"))
    return log


KERNEL_TEST = """
import torch
from tests.kv_layouts import make_layout
from vtoken_sdk.bench.caches import ORDERS, memory_of
from tests.test_relocate import moves
from vtoken_sdk.kv_triton import copy_rows
from vtoken_sdk.relocate import copy_kv

for name in ORDERS:
    for dtype in ("float32", "bfloat16"):
        torch.manual_seed(0)
        layout, (sources, destinations) = make_layout(name, dtype), moves(10)
        before = [memory.clone() for memory in memory_of(layout)]
        copy_kv(layout, sources, destinations)
        expected = [memory.clone() for memory in memory_of(layout)]
        for memory, old in zip(memory_of(layout), before):
            memory.copy_(old)
        for rows in layout.parts:
            for store in rows.stores:
                copy_rows(store, *map(rows.first_row, (sources, destinations)), rows.pieces)
        assert all(map(torch.equal, memory_of(layout), expected)), (name, dtype)
        assert not any(map(torch.equal, memory_of(layout), before))
print("same")
"""


def test_the_kernel_does_what_torch_does(run: Run) -> None:
    pytest.importorskip("triton")
    result = run("-c", KERNEL_TEST, TRITON_INTERPRET="1", PYTHONPATH=str(ROOT))
    assert result.stdout == "same\n", result.stderr


@pytest.mark.parametrize("name", ORDERS)
def test_gather_reads_what_was_written(name: str) -> None:
    (view,) = make_layout(name, "float32").views
    slots = torch.tensor([5, 0, 23])
    got = gather_kv(StridedKV((view,)), slots)
    assert torch.equal(
        got.view(torch.int32),
        torch.stack([view[:, s // SLOTS, s % SLOTS].flatten() for s in slots]).view(torch.int32),
    )
