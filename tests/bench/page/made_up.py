"""Small results of every bench, with numbers that are all different, to look for on a page."""

from __future__ import annotations

from itertools import count
from typing import Any

from vtoken_sdk.bench.results import ResultFile

Data = dict[str, Any]
MACHINE = {"processor": "Made-up 9", "cores": 2, "memory_gib": 23.5, "system": "Linux"}
LOAD = {
    "model": "tiny", "num_blocks": 65, "block_size": 32, "budget": 64, "prefill_interval": 64,
    "context": 512, "workload": None,
}  # fmt: skip


def result(bench: str, data: Data, settings: Data | None = None, **more: Any) -> ResultFile:
    command = f"vtoken bench {bench} --output {bench}.json"
    return ResultFile(bench, command, settings or LOAD, data, machine=MACHINE, **more)


def spread(middle: float) -> Data:
    return {"min": middle - 0.11, "median": middle, "max": middle + 0.23}


def capacity() -> ResultFile:
    cells = {
        "native": {"capacity": 4, "over_native": 1.0, "packed_ideal": 5, "share_of_ideal": 0.812},
        "naive h2o": {
            "capacity": 6, "over_native": 1.51, "packed_ideal": 33, "share_of_ideal": 0.183,
        },
        "vtoken h2o": {
            "capacity": 31, "over_native": 7.75, "packed_ideal": 34, "share_of_ideal": 0.963,
        },
    }  # fmt: skip
    data = {
        "cells": cells,
        "same_tokens": {"naive h2o = vtoken h2o": {"requests": 17, "same": 16}},
        "goals": {
            "vtoken over native >= 4": True,
            "share of the packed ideal >= 0.9": None,
            "same tokens": False,
        },
    }
    return result("capacity", data)


def frontier() -> ResultFile:
    numbers = count(1)
    keys = (
        "tokens_per_s", "p50_latency_s", "p95_latency_s", "p50_ttft_s", "p50_tpot_ms",
        "preemptions",
    )  # fmt: skip
    points = [
        {
            "cell": cell,
            "concurrency": level,
            **{key: spread(round(1.37 * next(numbers) + 0.4, 2)) for key in keys},
        }
        for cell in ("native", "naive h2o", "vtoken h2o")
        for level in (2, 8)
    ]
    ratios = ("p95_bound_s", "throughput_gain", "p95_ratio", "p95_ratio_at_reference")
    gain = {key: spread(61.5 + i) for i, key in enumerate(ratios)}
    data = {
        "rule": "highest throughput with p95 <= 1.05 x Naive's p95 at 8 in flight",
        "points": points,
        "gains": {"vtoken h2o": {"selected": [71, 72], "naive_selected": [73, 74], **gain}},
        "same_tokens": {},
        "goals": {
            "throughput over naive >= 1.37 for every policy": False,
            "p95 at C_ref no worse than naive's": True,
        },
    }
    return result("frontier", data, {**LOAD, "rounds": 3})


def memory() -> ResultFile:
    cells = {}
    for i, cell in enumerate(("native", "naive h2o", "vtoken h2o")):
        cells[cell] = {
            "histogram": {
                "0-25 %": 0.11 + i / 100, "25-50 %": 0.21 + i / 100, "50-75 %": 0.31 + i / 100,
                "75-100 %": 0.37 - 3 * i / 100,
            },
            "under_half": 0.321 + i / 50,
            "waste": 0.412 + i / 50,
            "worst_waste_blocks_per_request": 0.97 + i,
            "waste_blocks_per_request": 0.53 + i,
            "retained_blocks_per_request": 14.6 + i,
            "peak_blocks_per_request": 18 + i,
            "series": [{"step": 0, "blocks": 40 + i}, {"step": 9, "blocks": 51 + i}],
        }  # fmt: skip
    goals = {"vtoken wastes below one block per request, always": False}
    return result("memory", {"cells": cells, "same_tokens": {}, "goals": goals})


def prefix() -> ResultFile:
    keys = ("retained_blocks", "peak_pool_blocks", "tokens_per_s", "hit_share", "preemptions")
    numbers = count(1)
    points = [
        {"cell": cell, "degree": degree, **{key: spread(3.25 * next(numbers)) for key in keys}}
        for cell in ("native + cache", "vtoken random + cache", "vtoken random")
        for degree in (1, 8)
    ]
    changes = [
        {
            "degree": degree,
            "cell": "vtoken random + cache",
            "against": "native + cache",
            "retained_blocks": spread(-0.46 + degree / 100),
            "tokens_per_s": spread(0.31 + degree / 100),
        }
        for degree in (1, 8)
    ]
    data = {
        "points": points,
        "changes": changes,
        "same_tokens": {"native = native + cache": {"requests": 64, "same": 64}},
        "goals": {"a prefix cache changes no token": True},
    }
    return result("prefix", data, {**LOAD, "shared": 256, "concurrency": 8})


def _blocks(mean: float) -> Data:
    return {"perplexity": {"mean": mean, "peak": 41}}


def quality() -> ResultFile:
    rows = [
        {
            "policy": policy,
            "budget": budget,
            "blocks": {"vtoken": _blocks(3.4 + i), "naive": _blocks(8.6 + i)},
            "perplexity": {
                "perplexity": 26.67 + i,
                "divergence": 0.3567 + i / 10,
                "same_likeliest": 0.763 - i / 100,
                "largest_difference_to_naive": 0.0001 * (i + 1),
            },
            "generations": {
                "answers": 12 + i,
                "same_tokens_as_naive": 11 + i,
                "rouge_l_difference": -0.0123 - i / 100,
                "rouge_l_to_native": 0.364 + i / 100,
                "same_tokens_as_native": 1 + i,
                "tokens_agreed_with_native": 6.3 + i,
                "length_ratio_to_native": 0.94 + i / 10,
            },
            "needles": {"retrieved": [False, True], "found": 1, "asked": 2},
            "different_from_naive": 1,
        }
        for i, (policy, budget) in enumerate([("h2o", 96), ("h2o", 192), ("random", 96)])
    ]
    data = {
        "texts": {"needles": [{"name": "0%", "tokens": 326}, {"name": "100%", "tokens": 329}]},
        "native": {
            "blocks": _blocks(10.2),
            "perplexity": {"perplexity": 18.9},
            "needles": {"retrieved": [True, True], "found": 2, "asked": 2},
        },
        "rows": rows,
        "summary": {
            "answers": 39,
            "same_tokens_as_naive": 36,
            "different_from_naive": 3,
            "rouge_l_difference": -0.0017,
            "within_0.01": 0.931,
            "length_ratio_to_naive": 0.98,
        },
    }
    return result("quality", data, {"model": "SmolLM2-135M-Instruct", "dtype": "float32"})


def overhead() -> ResultFile:
    numbers = count(1)

    def case(share: float) -> Data:
        n = next(numbers)
        parts = {"plan": 0.111 * n, "copy": 0.122 * n}
        return {"own_ms": 0.251 * n, "step_ms": 61.3 * n, "share": share, "parts_ms": parts}

    batches = {
        "1": {"layers": 30, "cases": {"hooks": case(0.0041), "random": case(0.0262)}},
        "64": {"layers": 8, "cases": {"hooks": case(0.0243)}},
    }
    end_to_end = {"throughput": spread(-0.004), "p95 latency": spread(0.021), "rounds": 3}
    return result("overhead", {"batches": batches, "end_to_end": end_to_end})


def simulate_paper() -> ResultFile:
    cells = [
        {"budget": None, "prefill_interval": None, "closed_form": 5, "at_once": 4},
        {"budget": 1360, "prefill_interval": None, "closed_form": 53, "at_once": 52},
        {"budget": 1361, "prefill_interval": 512, "closed_form": 64, "at_once": 63},
    ]
    rows = [
        {
            "retention": 0.1 + i / 7, "formula": 0.8771 - i / 9, "naive": 0.7774 - i / 9,
            "vtoken": 0.0049 + i / 100, "naive_most_slots": 14_767 + i, "vtoken_most_slots": 14 + i,
        }
        for i in range(2)
    ]  # fmt: skip
    data = {
        "title": "Model-X",
        "num_blocks": 5427,
        "native": 7,
        "theirs": 8,
        "assumed": False,
        "context": 16_320,
        "blocks_per_context": 1020,
        "blocks_of_six_contexts": 6121,
        "theirs_explained": {"lowest": 0.59, "highest": 0.66, "at_85_blocks": 61},
        "cells": [{**cell, "preemptions": 30 + i} for i, cell in enumerate(cells)],
        "waste": rows,
        "below_half": [{"policy": "H2O", "share": 0.56, "retention": 0.451, "waste": 0.549}],
    }
    return result("simulate", data, {"preset": "model-x"})


def simulate_trace() -> ResultFile:
    variants = {
        name: {
            "finished": 117 + i,
            "complete": not i,
            "most_running": 12 + i,
            "mean_running": 5.5 + i,
            "preemptions": 21 + i,
            "steps": 8332 + i,
            "computed_tokens": 1_536_269 + i,
            "waste": 0.0512 + i / 10,
            "mean_blocks_per_request": 802.8 + i,
            "most_blocks_per_request": 5185 + i,
            "most_slots_wasted_after_a_cut": 31 + i,
            "mean_blocks_in_use": 4424.4 + i,
            "most_blocks_in_use": 5225 + i,
            "predicted": {
                "seconds": 146.7 + i, "output_tokens_per_second": 292.5 + i,
                "median_latency_s": 48.8 + i, "p95_latency_s": 104.9 + i,
            },
            "over_time": [
                {
                    "seconds": [0.0, 3.7 + i], "running": [2, 7 + i], "blocks": [513, 4919 + i],
                    "waste": [0.002, 0.0005],
                }
            ],
        }
        for i, name in enumerate(("native", "naive", "vtoken"))
    }  # fmt: skip
    data = {
        "workload": "a-trace",
        "source": "somewhere",
        "requests": 119,
        "left_out": 6,
        "context": 86_816,
        "engines": 9,
        "mean_prompt": 12_661.4,
        "mean_output": 366.7,
        "victims": {"name": "heavy", "meaning": "those with least weight"},
        "variants": variants,
    }
    settings = {
        "trace": "a-trace", "preset": "default", "gpus": 11, "blocks": 5427, "block_size": 16,
        "budget": 1360, "clock": {"step": 0.007, "token": 4e-05, "kv": 4.4e-08},
    }  # fmt: skip
    return result("simulate", data, settings)


def planner() -> ResultFile:
    numbers = count(1)
    figures = ("evicted", "freed", "copies", "headroom")
    ratios = ("copies_per_evicted", "copies_per_freed_block", "waste")
    plans = {
        plan: {name: 100 + next(numbers) for name in figures}
        | {name: 0.217 * next(numbers) for name in ratios}
        for plan in ("in_place", "repack")
    }
    times = {
        name: {"median_ms": 0.71 + i, "best_ms": 0.63 + i, "repeats": 3 + i}
        for i, name in enumerate(("plan: all", "select"))
    }
    data = {
        "environment": {"device": "cpu", "threads": 12},
        "goal_ms": 5.0,
        "times": times,
        "table": {"token_id": 4.2, "with one column": 8.2},
        "patterns": {"h2o-like": plans},
    }
    settings = {"sequences": 256, "tokens": 16_384, "block_size": 16, "budget": 1024}
    return result("planner", data, settings)


def relocation() -> ResultFile:
    numbers = count(1)

    def layout() -> Data:
        n = next(numbers)
        times = {
            name: {"median_ms": 0.311 * n + i, "best_ms": 0.292 * n + i, "repeats": 3}
            for i, name in enumerate(("copy", "pair", "packed"))
        }
        ratios = {"row_bytes": 128 * n, "gb_per_s": 1.56 * n, "to_pair": 0.7, "to_packed": 1.2 * n}
        return times | ratios

    shape = {
        "layers": 30, "heads": 3, "channels": 129, "dtype": "bfloat16", "blocks": 512,
        "block_size": 32,
    }  # fmt: skip
    shapes = {"a cache": {"shape": shape, "moves": 257, "layouts": {"L": layout(), "M": layout()}}}
    data = {"environment": {"device": "cpu", "threads": 12}, "shapes": shapes}
    return result("relocation", data, {"moves": 256})


def unheard_of() -> ResultFile:
    data = {
        "speed": {"fast": 12.5, "slow": None},
        "works": True,
        "sizes": [3, 5],
        "kinds": {"one": {"time": {"s": 2.5}}, "two": {"time": {"s": 3.5}, "n": 7}},
        "runs": [{"name": "a", "time": {"s": 1.25}}, {"name": "b | c", "more": 9_876}],
    }
    return result("unheard-of", data)


ALL = (
    capacity, frontier, memory, prefix, quality, simulate_paper, simulate_trace, overhead,
    planner, relocation, unheard_of,
)  # fmt: skip
