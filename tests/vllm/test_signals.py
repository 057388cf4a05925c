"""The attention and key signals of real engines against eager attention of transformers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.vllm import lab
from tests.vllm.lab import Engine, random_requests, text_requests

PROBE = f"{Path(__file__).with_name('probe.py')}:Probe"
BROKEN = f"{Path(__file__).with_name('probe.py')}:Broken"
TOLERANCE = 1e-4


def probing(name, **settings):
    args = {"file": f"{name}.pt"} | settings.pop("args", {})
    defaults = {
        "budget": 96,
        "chunk": 100,  # prompts are read in chunks that are no multiple of anything
        "workloads": {"w": random_requests("w", (40, 97, 200, 333), 90)},
    }
    return Engine(PROBE, args, **(defaults | settings))


def smol(name, **settings):
    texts = {"workloads": {"w": text_requests("w", (260, 97, 40), 48)}}
    return probing(name, model="smol", blocks=64, **(texts | settings))


def crowded(name, **settings):
    requests = random_requests("w", (150, 20, 20, 20, 20, 20, 20), [40] + [70] * 6)
    sizes = {"budget": 64, "blocks": 9, "max_model_len": 256, "admission": False}
    return probing(name, workloads={"w": requests}, **(sizes | settings))


def on_v2(name, **settings):
    short = {"workloads": {"w": random_requests("w", (40, 97, 150), 48)}}
    return probing(name, runner="v2", budget=64, max_model_len=256, **(short | settings))


ENGINES = {
    "sums": probing,
    "sums-interval": partial(probing, prefill_interval=64),
    "window-1": partial(probing, args={"window": 1, "every": 2}),
    "window-20-tight": partial(crowded, args={"window": 20}),
    "sums-tight": partial(crowded, prefill_interval=64),
    "naive": partial(probing, variant="naive"),
    "compiled": partial(probing, eager=False),
    "several": partial(probing, in_process=False),
    "smol": partial(smol, prefill_interval=128),
    "smol-window": partial(smol, args={"window": 32, "every": 4}),
    "smol-compiled": partial(smol, eager=False),
    "v2": on_v2,
    "v2-window": partial(on_v2, args={"window": 8}, chunk=50),
}


@pytest.fixture(scope="module")
def run(models, tmp_path_factory):
    """Records, trace and results of the engines, which share processes where they can."""
    engines = {name: make(name) for name, make in ENGINES.items()}
    results, folders = {}, {}

    def run(name):
        if name not in results:
            group = {n: e for n, e in engines.items() if e.process == engines[name].process}
            folder = tmp_path_factory.mktemp("signals")
            results.update(lab.run(group, models, folder))
            folders.update(dict.fromkeys(group, folder))
        result, folder = results[name], folders[name]
        assert not isinstance(result, str), f"engine {name} failed: {result}"
        trace = (folder / f"{name}.trace.jsonl").read_text().splitlines()
        records = torch.load(folder / f"{name}.pt")
        return engines[name], result["w"], [json.loads(line) for line in trace], records

    return run


def true_attention(model, tokens, cuts, every):
    """Attention ``[n, n]`` of each query, mean over heads and scored layers, and keys per layer."""
    n = len(tokens)
    visible = torch.ones(n, n, dtype=torch.bool).tril()
    for cut in cuts:
        visible[cut["length"] :, cut["evicted"]] = False
    bias = torch.zeros(n, n).masked_fill(~visible, float("-inf"))[None, None]
    with torch.inference_mode():
        out = model(
            torch.tensor([tokens]),
            attention_mask=bias,
            position_ids=torch.arange(n)[None],
            output_attentions=True,
            use_cache=True,
        )
    layers = torch.stack([layer[0].mean(0) for layer in out.attentions[::every]])
    keys = [layer.keys[0].transpose(0, 1) for layer in out.past_key_values.layers]
    return layers.mean(0), keys


def expected_signal(rows, first, length, window, ids):
    """What the view should show of the queries ``first .. length - 1``."""
    own = rows[first:length][:, ids]
    if not window:
        return own.sum(0)
    padded = torch.zeros(window, len(ids))
    kept = min(window, length - first)
    padded[window - kept :] = own[-kept:] if kept else 0
    return padded


@pytest.mark.parametrize("name", ENGINES)
def test_signals_equal_eager_attention(name, run, models, record_property):
    engine, result, trace, records = run(name)
    model = models.reference(engine.model).model
    args = {"window": 0, "every": 1} | engine.policy_args
    truth, keys = {}, {}
    for request in engine.workloads["w"]:
        tokens = [*request.prompt, *result.outputs[request.id]]
        cuts = [cut for cut in trace if cut["request"] == request.id]
        truth[request.id], keys[request.id] = true_attention(model, tokens, cuts, args["every"])
    assert len(records) == len(trace)
    before, worst, of_keys = {}, 0.0, 0.0
    for cut, seen in zip(trace, records, strict=True):
        request, life, length = cut["request"], cut["life"], cut["length"]
        first, ids = before.get((request, life), 0), seen["ids"]
        before[request, life] = length
        assert seen["length"] == length
        assert len(ids) == cut["live"] + len(cut["evicted"])
        want = expected_signal(truth[request], first, length, args["window"], ids)
        worst = max(worst, float((seen["attention"] - want).abs().max()))
        assert torch.equal(seen["query_count"], length - ids.clamp(min=first))
        for layer, got in zip(keys[request], seen["keys"], strict=True):
            of_keys = max(of_keys, float((got - layer[ids]).abs().max()))
    record_property("worst", worst)
    assert worst < TOLERANCE
    assert of_keys < 1e-3  # keys are numbers of any size, not probabilities
    lengths = {cut["length"] for cut in trace}
    assert len(lengths) > 3, "too few eviction points to show anything"
    assert bool(result.preemptions) == ("tight" in name)


@pytest.mark.parametrize("fault", ["raises", "shape", "nan"])
def test_a_broken_policy_is_repaired_and_named_once(fault, models, tmp_path):
    requests = random_requests("w", (40, 97, 200), 60)
    broken = Engine(BROKEN, {"fault": fault}, workloads={"w": requests})
    sound = Engine("streaming-llm", workloads={"w": requests})  # it evicts the oldest, too
    results = lab.run({"broken": broken, "sound": sound}, models, tmp_path)
    assert not isinstance(results["broken"], str), results["broken"]
    assert results["broken"]["w"].outputs == results["sound"]["w"].outputs
    log = (tmp_path / "log.txt").read_text()
    assert log.count("policy 'broken'") == 1
    assert "the oldest evictable tokens leave instead" in log


def test_strict_engines_stop_and_name_the_request(models, tmp_path):
    requests = random_requests("w", (97,), 40)
    engine = Engine(BROKEN, {"fault": "nan"}, strict=True, workloads={"w": requests})
    result = lab.run({"strict": engine}, models, tmp_path)["strict"]
    assert isinstance(result, str)
    assert "PolicyError: policy 'broken': score() returned NaN" in result
    assert "(request 'w.0')" in result


def test_full_graphs_are_refused_where_attention_is_watched():
    from vllm.config import CUDAGraphMode

    from vtoken_sdk.errors import UnsupportedError
    from vtoken_sdk.registry import make_policy
    from vtoken_sdk.vllm.compat import check_graphs

    watching, deaf = make_policy(PROBE, {}), make_policy("random", {})
    for mode in CUDAGraphMode:
        config = SimpleNamespace(compilation_config=SimpleNamespace(cudagraph_mode=mode))
        check_graphs(config, deaf)
        if not mode.has_full_cudagraphs():
            check_graphs(config, watching)
            continue
        with pytest.raises(UnsupportedError, match=r"to PIECEWISE"):
            check_graphs(config, watching)


@pytest.mark.parametrize(
    ("given", "mode"),
    [(None, "PIECEWISE"), ({"mode": 3}, "PIECEWISE"), ({"cudagraph_mode": "NONE"}, "NONE")],
)
def test_graphs_are_piecewise_unless_the_user_chose(given, mode):
    from vtoken_sdk.vllm.engine import _piecewise

    assert _piecewise(given)["cudagraph_mode"] == mode
    assert _piecewise(given) == {"cudagraph_mode": mode, **(given or {})}
