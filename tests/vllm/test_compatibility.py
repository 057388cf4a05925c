"""What is served and refused: each row is backed by a test, or by a refusal that fires."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tests.conftest import ROOT
from vtoken_sdk.errors import UnsupportedError
from vtoken_sdk.vllm import engine_args
from vtoken_sdk.vllm.compat import check_features, check_kv_groups, check_layers
from vtoken_sdk.vllm.compat_table import Status, compatibility
from vtoken_sdk.vllm.features import ENGINE_REFUSALS, REFUSALS, SERVED
from vtoken_sdk.vllm.signals import check_impl

EVIDENCE = {
    "model runner V1": ("test_exactness.py", "test_exact"),
    "model runner V2": ("test_runner_v2.py", "test_exact"),
    "chunked prefill": ("test_load.py", "test_the_same_victims_and_tokens_under_any_load"),
    "prefix caching": ("test_prefix.py", "test_tokens_are_those_of_masked_attention"),
    "preemption": ("test_blocks.py", "test_the_free_list_grows_at_each_cut"),
    "engine processes": ("test_exactness.py", "test_the_chosen_settings_combine_every_two_choices"),
    "compiled models": ("test_signals.py", '"compiled": partial(probing, eager=False)'),
    "log probabilities": ("test_serve.py", "test_log_probabilities_of_the_prompt"),
    "several samples of a prompt": ("test_serve.py", "test_several_samples_of_one_prompt"),
    "structured output": ("test_serve.py", "test_structured_output"),
    "overlapped steps": ("test_overlapped.py", "test_cuts_are_the_same_as_step_by_step"),
    "tensor parallelism": ("test_parallel.py", "test_two_ranks_generate_what_one_does"),
    "pipeline parallelism": ("test_features.py", '"pipeline random": '),
    "ngram speculation": ("test_features.py", "test_drafts_are_accepted"),
    "LoRA adapters": ("test_features.py", "test_requests_with_and_without_an_adapter_are_exact"),
    "fp8 KV cache": ("test_features.py", "test_fp8_is_exact"),
    "data parallelism": ("test_data_parallel.py", "test_tokens_are_those_of_one_engine"),
    "KV events": ("test_kv_events.py", "test_replayed_they_give_the_cache"),
    "eviction under pressure": ("test_pressure.py", "test_what_is_cut_stays_exact"),
    "streaming input": ("test_streaming_input.py", "test_a_prompt_in_parts_is_never_cut"),
    "aborted requests": ("test_edges.py", "test_an_aborted_request_leaves_nothing_behind"),
    "OpenAI server": ("test_serve.py", "test_a_streamed_answer_is_the_same"),
}

ngram, eagle = SimpleNamespace(method="ngram"), SimpleNamespace(method="eagle")
WATCHING = {"vtoken": {"policy": "h2o", "budget": 64}}
ASKED_FOR = {
    "prefix caching under Naive-Evict": {
        "cache_config.enable_prefix_caching": True,
        "additional_config": {"vtoken": {"policy": "random", "budget": 64, "variant": "naive"}},
    },
    "speculative decoding with a drafting model": {"speculative_config": eagle},
    "speculative decoding with overlapped steps": {
        "speculative_config": ngram,
        "scheduler_config.async_scheduling": True,
    },
    "speculative decoding under policies that watch attention": {
        "speculative_config": ngram,
        "additional_config": WATCHING,
    },
    "speculative decoding with pipeline parallelism": {
        "speculative_config": ngram,
        "parallel_config.pipeline_parallel_size": 2,
    },
    "KV transfer and offloading": {"kv_transfer_config": object()},
    "pipeline parallelism under policies that need signals": {
        "parallel_config.pipeline_parallel_size": 2,
        "additional_config": WATCHING,
    },
    "pipeline parallelism of eager models on CPUs": {"parallel_config.pipeline_parallel_size": 2},
    "context parallelism": {"parallel_config.decode_context_parallel_size": 2},
    "dual-batch overlap": {"parallel_config.enable_dbo": True},
    "quantised KV cache of other types than fp8": {"cache_config.cache_dtype": "fp8_inc"},
    "fp8 KV cache under policies that need signals": {
        "cache_config.cache_dtype": "fp8",
        "additional_config": WATCHING,
    },
    "KV caches of several types": {"cache_config.kv_cache_dtype_skip_layers": ["0"]},
    "HiSparse": {"attention_config.hisparse_config": object()},
    "fast prefill by KV sharing": {"cache_config.kv_sharing_fast_prefill": True},
    "models that do not generate text": {"model_config.runner_type": "pooling"},
    "encoder-decoder models": {"model_config.is_encoder_decoder": True},
    "models with recurrent state": {"model_config.is_hybrid": True},
    "multi-head latent attention": {"model_config.use_mla": True},
    "sliding-window and chunked attention": {"model_config.get_sliding_window": lambda self: 128},
    "ALiBi": {"model_config.hf_text_config.alibi": True},
    "an eviction trace of several engines": {
        "parallel_config.data_parallel_size": 2,
        "additional_config": {"vtoken": {"policy": "random", "budget": 64, "trace": "cuts.jsonl"}},
    },
    "images, audio and video": {"model_config.is_multimodal_model": True},
    "bidirectional attention within a prompt": {"model_config.is_mm_prefix_lm": True},
}


@pytest.fixture(scope="module")
def vllm_config(models):
    from vllm import EngineArgs

    arguments = engine_args(
        str(models["tiny"]), policy="random", budget=64, max_model_len=512, dtype="float32",
        num_gpu_blocks_override=17, enforce_eager=True, skip_tokenizer_init=True,
    )  # fmt: skip
    return EngineArgs(**arguments).create_engine_config()


@contextmanager
def asking_for(vllm_config: Any, wishes: dict[str, Any]) -> Iterator[None]:
    """vLLM's own configuration, with some of its attributes changed, properties included."""
    with ExitStack() as stack:
        for path, value in wishes.items():
            *way, name = path.split(".")
            owner = vllm_config
            for step in way:
                owner = getattr(owner, step)
            on_class = hasattr(type(owner), name) and name not in vars(owner)
            target = type(owner) if on_class else owner
            create = not hasattr(owner, name)
            assert not create or name == "alibi", f"vLLM has no {path}"
            stack.enter_context(patch.object(target, name, value, create=create))
        yield


def test_nothing_is_refused_that_nobody_asked_for(vllm_config):
    check_features(vllm_config)


@pytest.mark.parametrize("feature", ASKED_FOR)
def test_a_refusal_fires_and_names_its_feature(feature, vllm_config):
    with (
        asking_for(vllm_config, ASKED_FOR[feature]),
        pytest.raises(UnsupportedError, match=f"^{feature}: not served"),
    ):
        check_features(vllm_config)


def test_no_row_is_without_evidence():
    assert set(EVIDENCE) == {each.feature for each in SERVED}
    assert set(ASKED_FOR) == {each.feature for each in REFUSALS}
    for file, words in EVIDENCE.values():
        assert words in (ROOT / "tests/vllm" / file).read_text(), f"{file} has no {words}"


def test_caches_of_another_kind_are_refused():
    groups = [SimpleNamespace(kv_cache_spec=object())] * 2
    with pytest.raises(UnsupportedError, match="full attention"):
        check_kv_groups(SimpleNamespace(kv_cache_groups=groups))


def test_step1_has_alibi_though_its_configuration_does_not_say(vllm_config):
    wishes = {"model_config.architectures": ["Step1ForCausalLM"]}
    with (
        asking_for(vllm_config, wishes),
        pytest.raises(UnsupportedError, match=r"^ALiBi: not served"),
    ):
        check_features(vllm_config)


def test_layers_with_alibi_are_refused_by_the_engine_whatever_the_model_is_called():
    plain, slopes = SimpleNamespace(alibi_slopes=None), torch.ones(4)
    check_layers([SimpleNamespace(impl=plain), SimpleNamespace()])
    with pytest.raises(UnsupportedError, match=r"^ALiBi: not served"):
        check_layers([SimpleNamespace(impl=SimpleNamespace(alibi_slopes=slopes))])


def test_the_attention_signal_is_refused_where_sinks_are_tensors():
    check_impl(SimpleNamespace(logits_soft_cap=0, sinks=None))
    for impl in (SimpleNamespace(sinks=torch.ones(4)), SimpleNamespace(logits_soft_cap=30.0)):
        with pytest.raises(UnsupportedError, match="attention signal does not know"):
            check_impl(impl)


def test_the_table_has_every_row_once():
    rows = compatibility()
    features = [row.feature for row in rows]
    assert len(set(features)) == len(features) == 1 + len([*SERVED, *REFUSALS, *ENGINE_REFUSALS])
    assert all(row.remark for row in rows)
    assert {row.status for row in rows} == set(Status)
