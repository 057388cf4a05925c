"""References for models that are run in another way than they were saved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from vtoken_sdk.testing.oracle import Reference

RANK, ALPHA = 4, 32.0
"""Of the adapter; far from nothing, so that it changes almost every token."""


class Fp8Reference(Reference):
    """Keeps keys (rotated, as vLLM caches them) and values as fp8 numbers, with a scale of 1.

    vLLM's CPU kernels cut digits off: they round towards zero, torch to the nearest number.
    """

    def logits(self, *args: Any, **kwargs: Any) -> Any:
        with fp8_cache(self.model):
            return super().logits(*args, **kwargs)


@contextmanager
def fp8_cache(model: Any) -> Iterator[None]:
    """Round what a cache would hold while the model runs."""
    import torch
    from transformers.models.llama import modeling_llama

    rotate = modeling_llama.apply_rotary_pos_emb

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        nearest = tensor.to(torch.float8_e4m3fn)
        too_far = nearest.to(tensor.dtype).abs() > tensor.abs()
        codes = nearest.view(torch.uint8) - too_far.to(torch.uint8)
        return codes.view(torch.float8_e4m3fn).to(tensor.dtype)

    def rotated(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        query, key = rotate(*args, **kwargs)
        return query, rounded(key)

    hooks = [
        layer.self_attn.v_proj.register_forward_hook(lambda _layer, _given, out: rounded(out))
        for layer in model.model.layers
    ]
    try:
        with patch.object(modeling_llama, "apply_rotary_pos_emb", rotated):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def make_adapter(model: Path, folder: Path) -> Path:
    """Write a LoRA adapter of random weights for the query and value projections of a Llama."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model)
    kv = config.num_key_value_heads * config.head_dim
    sizes = {"q_proj": config.num_attention_heads * config.head_dim, "v_proj": kv}
    generator = torch.Generator().manual_seed(1)
    weights = {}
    for layer in range(config.num_hidden_layers):
        for module, size in sizes.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            a = torch.randn(RANK, config.hidden_size, generator=generator)
            b = torch.randn(size, RANK, generator=generator)
            weights[f"{name}.lora_A.weight"], weights[f"{name}.lora_B.weight"] = a / 20, b / 20
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(sizes),
    }
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


def adapted_reference(model: Path, adapter: Path) -> Reference:
    """The model with an adapter's products added to its weights."""
    import torch
    from safetensors.torch import load_file

    reference, weights = Reference(model), load_file(adapter / "adapter_model.safetensors")
    with torch.no_grad():
        for name in [name for name in weights if name.endswith("lora_A.weight")]:
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            product = weights[name.replace("lora_A", "lora_B")] @ weights[name]
            reference.model.get_submodule(module).weight += product * (ALPHA / RANK)
    return reference
