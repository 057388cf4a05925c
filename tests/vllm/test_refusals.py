"""What cannot be served is refused by ``engine_args``, in the calling process, with advice."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from vtoken_sdk.bench.settings import DTYPES
from vtoken_sdk.config import built_for_cpu
from vtoken_sdk.errors import (
    ConfigError,
    PolicyLoadError,
    UnknownPolicyError,
    UnsupportedError,
    UsageError,
)
from vtoken_sdk.vllm import engine_args

pytestmark = pytest.mark.usefixtures("nothing_starts")

GOOD = {
    "policy": "random",
    "budget": 64,
    "dtype": "float32",
    "max_model_len": 512,
    "num_gpu_blocks_override": 17,
    "enforce_eager": True,
    "skip_tokenizer_init": True,
}

NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}

CASES = {
    "unknown policy": ({"policy": "h3o"}, UnknownPolicyError, r"h3o.*random.*streaming-llm"),
    "unknown parameter": ({"policy_args": {"sink": 4}}, UsageError, r"sink.*sinks"),
    "parameter of a wrong type": ({"policy_args": {"sinks": "few"}}, UsageError, r"sinks.*few"),
    "unknown preset": ({"preset": "papr"}, ConfigError, r"no preset 'papr'.*paper"),
    "parameter out of range": ({"policy_args": {"recent": -1}}, UsageError, r"recent.*-1"),
    "budget of 0": ({"budget": 0}, ConfigError, r"budget.*greater than 0"),
    "negative budget": ({"budget": -64}, ConfigError, r"budget.*greater than 0"),
    "budget that is no number": ({"budget": "much"}, ConfigError, r"budget.*much"),
    "budget below what is pinned": ({"budget": 51}, ConfigError, r"51.*at least 52"),
    "budget below larger sinks": (
        {"policy_args": {"sinks": 40}}, ConfigError, r"64.*at least 88",
    ),
    "block size": ({"block_size": 16}, ConfigError, r"16.*use 32"),
    "block size that is no multiple": ({"block_size": 48}, ConfigError, r"48.*use 32"),
    "larger blocks than the budget": ({"block_size": 64}, ConfigError, r"64.*at least 84"),
    "pool too small": (
        {"num_gpu_blocks_override": 16}, ConfigError, r"16 blocks.*at least 17 blocks",
    ),
    "interval": ({"prefill_interval": 100}, ConfigError, r"100.*use 128"),
    "interval of 0": ({"prefill_interval": 0}, ConfigError, r"prefill_interval.*greater than 0"),
    "variant": ({"variant": "nave"}, ConfigError, r"variant.*native.*naive"),
    "trace in no folder": ({"trace": "no/such/folder/t.jsonl"}, ConfigError, r"folder.*create it"),
    "context too long": ({"max_model_len": 100_000}, ConfigError, r"max_model_len"),
    "unknown argument": ({"max_num_sequences": 4}, ConfigError, r"max_num_sequences"),
    "another scheduler": ({"scheduler_cls": "x.Y"}, ConfigError, r"scheduler_cls.*leave it out"),
    "prefix caching": (
        {"enable_prefix_caching": True, "variant": "naive"}, UnsupportedError,
        r"Naive-Evict.*enable_prefix_caching=False",
    ),
    "speculation": (
        {"speculative_config": NGRAM, "policy": "h2o"}, UnsupportedError, r"Signal.ATTENTION",
    ),
    "pipeline parallelism": (
        {"pipeline_parallel_size": 2, "policy": "h2o"}, UnsupportedError,
        r"pipeline_parallel_size=1",
    ),
    "quantised cache": (
        {"kv_cache_dtype": "fp8", "policy": "knorm"}, UnsupportedError, r"kv_cache_dtype='auto'",
    ),
}  # fmt: skip


def test_the_arguments_the_cases_start_from_are_good(tiny):
    arguments = engine_args(tiny, **GOOD)
    assert arguments["block_size"] == 32
    assert not arguments["enable_prefix_caching"]
    published = engine_args(tiny, **GOOD, preset="paper", policy_args={"sinks": 2})
    config = published["additional_config"]["vtoken"]
    assert config["policy_args"] == {"sinks": 2, "recent": 0}
    native = engine_args(tiny, **GOOD, variant="native")
    assert not {"scheduler_cls", "worker_cls", "additional_config"} & set(native)


@pytest.mark.parametrize("case", CASES)
def test_refused(case, tiny):
    change, error, message = CASES[case]
    with pytest.raises(error, match=f"(?s){message}"):
        engine_args(tiny, **(GOOD | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float7"}, "dtype.*bfloat16.*float7"),
        ({"max_num_batched_tokens": 2, "max_num_seqs": 4}, "max_num_batched_tokens"),
    ],
)
def test_what_vllm_refuses_is_told_in_one_line(tiny, change, message):
    """Not as pydantic prints it: with the types and repr of every input, and a link to its docs."""
    with pytest.raises(ConfigError, match=f"vLLM refuses this configuration: .*{message}") as told:
        engine_args(tiny, **(GOOD | change))
    assert "\n" not in str(told.value)
    assert "pydantic" not in str(told.value)


@pytest.mark.parametrize("name", ["./no/such/folder", "no-such-owner/no-such-model"])
def test_a_model_that_is_not_there(name):
    with pytest.raises(ConfigError, match=f"{name}: check the name.*give the folder"):
        engine_args(name, **GOOD)


def test_a_policy_that_fails_to_import(tiny, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import no_such_module\n")
    with pytest.raises(PolicyLoadError, match=r"mine\.py.*no_such_module"):
        engine_args(tiny, **(GOOD | {"policy": f"{file}:Mine"}))


def test_another_vllm(tiny, monkeypatch):
    monkeypatch.setattr("vllm.__version__", "0.31.2")
    with pytest.raises(UnsupportedError, match=r"0\.31\.2.*install one of 0\.32"):
        engine_args(tiny, **GOOD)


def test_a_vllm_whose_inner_parts_differ(tiny, monkeypatch):
    from vllm.v1.core.sched.scheduler import Scheduler

    monkeypatch.delattr(Scheduler, "_reserve_prefill_lookahead")
    with pytest.raises(UnsupportedError, match="_reserve_prefill_lookahead"):
        engine_args(tiny, **GOOD)


def test_the_platform_is_told_without_importing_vllm():
    from vllm.platforms import current_platform

    assert built_for_cpu() is current_platform.is_cpu()


def test_dtypes_are_those_of_vllm():
    from vllm.config.model import ModelDType

    assert get_args(ModelDType) == DTYPES


def test_no_vllm(tiny, monkeypatch):
    monkeypatch.setattr("vtoken_sdk.vllm.compat.find_spec", lambda _: None)
    with pytest.raises(UnsupportedError, match=r"vtoken-sdk\[cuda\].*vtoken-sdk\[cpu\]"):
        engine_args(tiny, **GOOD)


MODELS = {
    "sliding window": (
        {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 128},
        "sliding-window",
    ),
    "ALiBi": (
        {"architectures": ["BloomForCausalLM"], "model_type": "bloom", "n_layer": 2, "n_head": 4},
        "ALiBi",
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_models_that_read_the_order_in_memory(kind, tmp_path):
    shape = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 512,
        "max_position_embeddings": 2048,
    }
    config, message = MODELS[kind]
    (tmp_path / "config.json").write_text(json.dumps(shape | config))
    with pytest.raises(UnsupportedError, match=message):
        engine_args(str(tmp_path), **GOOD)
