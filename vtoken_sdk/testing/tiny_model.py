"""A tiny Llama that notices when a single KV entry is wrong.

Untied embeddings and a wide initialisation make its next token depend on everything it attends to.
A tied model with the default initialisation repeats one token whatever it sees: full attention then
"agrees" with evicted output almost always, and a test on it proves nothing. The init is wide enough
for that and no wider: at 0.1 one wrong victim changes a third of the tokens and two float32 engines
differ by 1e-5; at 0.25 it changes fewer (attention is too sharp) and they differ by 1e-4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

VOCAB_SIZE = 4096


def make_tiny_model(folder: Path, *, seed: int = 0) -> Path:
    """Write the model's configuration and float32 weights into ``folder``; the same every time.

    There is no tokenizer: tests give token ids and start vLLM with ``skip_tokenizer_init``.

    Args:
        folder: Where to write; created if need be.
        seed: Seed of the weights.

    Returns:
        The folder.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        initializer_range=0.1,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder
