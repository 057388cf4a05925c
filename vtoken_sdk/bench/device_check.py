"""Checks and measures relocation on a CUDA device: ``python -m vtoken_sdk.bench.device_check``.

It needs torch and this package's files, nothing else, and takes less than three minutes. Where
there is no device it says so and exits with 0. What it does, in order:

1. every KV layout and dtype, every mode, torch and our kernel: the same bytes as on the CPU;
2. a batched cut: the same result as on the CPU, and no call that makes the host wait;
3. bandwidth of copying scattered tokens, against a plain copy of as many bytes on the device;
4. how much of a staged copy is hidden behind a stand-in for sampling;
5. what it costs when the host waits for every copy (the ablation).

The table comes last. The exit code is 1 if anything was wrong.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from vtoken_sdk.bench.caches import (
    CPU_LAYOUTS,
    ORDERS,
    CacheShape,
    make_cache,
    memory_of,
    moved_to,
)
from vtoken_sdk.bench.relocation import pair_copy
from vtoken_sdk.cut import CutResult, SequenceCut
from vtoken_sdk.kv_rows import KERNEL_VARIABLE
from vtoken_sdk.policy import ScoringPolicy
from vtoken_sdk.relocate import KVLayout, Mode, Relocator, copy_kv
from vtoken_sdk.runtime import VTokenRuntime
from vtoken_sdk.view import Moment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from vtoken_sdk.policy import SequenceView

DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "uint8")
SMALL = {dtype: CacheShape(3, 64, 2, 16, 64, dtype) for dtype in DTYPES}
MEASURED = CacheShape(32, 1_024, 8, 16, 256, "bfloat16")
"""The KV cache of Llama-3.1-8B: 128 KiB per token, 2 GiB in all."""
MOVES, REPEATS = 2_048, 20
VOCABULARY, BATCH = 128_256, 128

Result = tuple[str, str]


def main() -> int:
    """Run all checks and print the table; the exit code."""
    if not torch.cuda.is_available():
        print("device_check: no CUDA device here, skipped")
        return 0
    print(f"device_check on {torch.cuda.get_device_name()}, torch {torch.__version__}")
    return report(torch.device("cuda"))


def report(device: torch.device) -> int:
    """Run all checks on a device and print the table; the exit code."""
    results: list[Result] = []
    wrong = 0
    for step in (check_layouts, check_cut):
        name, mistakes = step(device)
        print(f"{name}: {len(mistakes)} wrong", file=sys.stderr)
        print("".join(f"  {mistake}\n" for mistake in mistakes), end="", file=sys.stderr)
        results.append((name, "same as on the CPU" if not mistakes else f"{len(mistakes)} WRONG"))
        wrong += len(mistakes)
    for measurement in (bandwidth, overlap):
        print(f"{measurement.__name__} ...", file=sys.stderr)
        results += measurement(device)
    width = max(len(name) for name, _ in results)
    print("\n".join(f"{name.ljust(width)}  {figure}" for name, figure in results))
    return 1 if wrong else 0


# -- the same as on the CPU -------------------------------------------------------------------


def check_layouts(device: torch.device) -> tuple[str, list[str]]:
    """Compare copies in every layout, dtype, mode and kernel with the CPU's.

    Returns:
        What was checked, and what was wrong.
    """
    mistakes, checked = [], 0
    for name in (*ORDERS, *CPU_LAYOUTS):
        for dtype, shape in SMALL.items():
            sources, destinations = _moves(shape, 200)
            before = make_cache(name, shape, torch.device("cpu"))
            expected = moved_to(before, torch.device("cpu"))
            copy_kv(expected, sources, destinations)
            for kernel in kernels():
                for mode in Mode:
                    with chosen_kernel(kernel):
                        got = _copied(before, device, mode, sources, destinations)
                    checked += 1
                    if not _same(got, expected):
                        mistakes.append(f"{name}, {dtype}, {mode.value}, {kernel}")
    return f"copies ({checked} of layout x dtype x mode x kernel)", mistakes


def kernels() -> tuple[str, ...]:
    """The kernels that can be used here."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return ("torch",)
    return ("torch", "triton")


@contextmanager
def chosen_kernel(name: str) -> Iterator[None]:
    """Copy by one kernel for a while."""
    before = os.environ.get(KERNEL_VARIABLE)
    os.environ[KERNEL_VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[KERNEL_VARIABLE]
        else:
            os.environ[KERNEL_VARIABLE] = before


def _moves(shape: CacheShape, count: int) -> tuple[Tensor, Tensor]:
    """Scattered moves; one goes where the first has left, one stays."""
    order = torch.randperm(shape.slots, generator=torch.Generator().manual_seed(0))
    sources, destinations = order[:count].clone(), order[count : 2 * count].clone()
    destinations[count // 2] = sources[0]
    destinations[-1] = sources[-1]
    return sources, destinations


def _copied(
    before: KVLayout, device: torch.device, mode: Mode, sources: Tensor, destinations: Tensor
) -> KVLayout:
    layout = moved_to(before, device)
    relocator = Relocator(layout, mode)
    relocator.copy(sources.to(device), destinations.to(device))
    relocator.wait_before_read()
    return layout


def _same(got: KVLayout, expected: KVLayout) -> bool:
    pairs = zip(memory_of(got), memory_of(expected), strict=True)
    return all(torch.equal(a.cpu(), b) for a, b in pairs)


class _Shuffled(ScoringPolicy):
    name = "shuffled"
    elementwise = True

    def score(self, seq: SequenceView) -> Tensor:
        return seq.random()


def check_cut(device: torch.device) -> tuple[str, list[str]]:
    """Compare batched cuts with the CPU's; on CUDA, any wait of the host is an error."""
    mistakes = []
    for leave in (None, (1, 3)):
        shape = SMALL["bfloat16"]
        before = make_cache("LBNHC", shape, torch.device("cpu"))
        expected, right = _cut(moved_to(before, torch.device("cpu")), shape, leave, Mode.STREAM)
        for mode in (Mode.STREAM, Mode.STAGED):
            try:
                got, answer = _cut(moved_to(before, device), shape, leave, mode)
            except RuntimeError as error:
                mistakes.append(f"{mode.value}, leave {leave}: {error}")
                continue
            same = torch.equal(answer.victims.cpu(), right.victims)
            if not same or not torch.equal(answer.live.cpu(), right.live):
                mistakes.append(f"{mode.value}, leave {leave}: other tokens")
            if not _same(got, expected):
                mistakes.append(f"{mode.value}, leave {leave}: other KV")
    return "batched cuts, host never waits", mistakes


def _cut(
    layout: KVLayout, shape: CacheShape, leave: tuple[int, ...] | None, mode: Mode
) -> tuple[KVLayout, CutResult]:
    device = layout.device
    runtime, relocator = (
        VTokenRuntime(_Shuffled(), shape.block_size, device),
        Relocator(layout, mode),
    )
    cuts = [
        SequenceCut("a", 32, Moment(128, key=1), leave),
        SequenceCut("b", 20, Moment(100, key=2)),
    ]
    tables = torch.arange(16, device=device).view(2, 8)
    with _no_waiting(device):
        result = runtime.cut(cuts, tables, relocator)
        relocator.wait_before_read()
    return layout, result


@contextmanager
def _no_waiting(device: torch.device) -> Iterator[None]:
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


# -- how long it takes ------------------------------------------------------------------------


def bandwidth(device: torch.device) -> list[Result]:
    """Copies of scattered tokens, per layout and kernel, as a share of a plain device copy."""
    moved = MOVES * MEASURED.token_bytes
    plain = device_ms(_plain_copy(moved, device))
    results = [(f"plain copy of {moved >> 20} MiB", _rate(moved, plain))]
    for name in ORDERS:
        for what, took in _layout_times(name, device).items():
            figure = f"{_rate(moved, took)}, {took / plain:.2f} x plain"
            results.append((f"  {name}, {what}", figure))
    return results


def _plain_copy(size: int, device: torch.device) -> Callable[[], object]:
    read = torch.ones(size, dtype=torch.uint8, device=device)
    written = torch.empty_like(read)
    return lambda: written.copy_(read)


def _layout_times(name: str, device: torch.device) -> dict[str, float]:
    """Milliseconds per kernel, and of the same rows by torch's pair with indices made before."""
    layout = make_cache(name, MEASURED, device)
    sources, destinations = (slots.to(device) for slots in _moves(MEASURED, MOVES))
    times = {}
    for kernel in kernels():
        with chosen_kernel(kernel):
            times[kernel] = device_ms(lambda: copy_kv(layout, sources, destinations))
    times["index pair"] = device_ms(pair_copy(layout, sources, destinations))
    return times


def overlap(device: torch.device) -> list[Result]:
    """A copy beside a stand-in for sampling: in stream order, staged, and with the host waiting."""
    layout = make_cache("LBNHC", MEASURED, device)
    sources, destinations = (slots.to(device) for slots in _moves(MEASURED, MOVES))
    logits = torch.randn(BATCH, VOCABULARY, device=device)

    def sample() -> None:
        probabilities = logits.softmax(1).sort(dim=1, descending=True).values
        (probabilities.cumsum(1) > 0.9).long().argmax(1)

    def step(mode: Mode) -> Callable[[], None]:
        relocator = Relocator(layout, mode)

        def run() -> None:
            relocator.copy(sources, destinations)
            sample()
            relocator.wait_before_read()

        return run

    copy = device_ms(lambda: copy_kv(layout, sources, destinations))
    alone = device_ms(sample)
    times = {mode: wall_ms(step(mode)) for mode in Mode}
    hidden = (times[Mode.STREAM] - times[Mode.STAGED]) / min(copy, alone)
    returns = {mode: host_ms(step(mode)) for mode in Mode}
    return [
        ("copy alone", f"{copy:.3f} ms"),
        ("sampling alone", f"{alone:.3f} ms"),
        *((f"copy + sampling, {mode.value}", f"{took:.3f} ms") for mode, took in times.items()),
        ("hidden by staging", f"{hidden:.0%} of the shorter of the two"),
        ("cost of waiting", f"{times[Mode.SYNC] / times[Mode.STREAM] - 1:+.1%} of a step"),
        *((f"host is back after, {mode.value}", f"{t:.3f} ms") for mode, t in returns.items()),
    ]


def device_ms(call: Callable[[], object]) -> float:
    """Median time of a call on the device, in milliseconds."""
    call()
    times = []
    for _ in range(REPEATS):
        start, end = _event(), _event()
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(float(start.elapsed_time(end)))
    return median(times)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def wall_ms(call: Callable[[], object]) -> float:
    """Time of a step when many follow each other, in milliseconds."""
    call()
    torch.cuda.synchronize()
    start = perf_counter()
    for _ in range(REPEATS):
        call()
    torch.cuda.synchronize()
    return (perf_counter() - start) / REPEATS * 1e3


def host_ms(call: Callable[[], object]) -> float:
    """Median time until a call returns to the host on an idle device, in milliseconds."""
    times = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    torch.cuda.synchronize()
    return median(times) * 1e3


def _rate(copied: int, ms: float) -> str:
    """Bytes read plus bytes written per second."""
    return f"{2 * copied / ms / 1e6:.0f} GB/s"


if __name__ == "__main__":
    sys.exit(main())
