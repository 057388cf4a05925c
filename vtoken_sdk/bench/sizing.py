"""How large pool, context and batch have to be for a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vtoken_sdk.bench.settings import RunSettings

MAX_NUM_SEQS = 256


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes every variant of a run shares, named as vLLM names them."""

    block_size: int
    max_model_len: int
    num_blocks: int
    max_num_seqs: int


def choose_sizes(
    settings: RunSettings, lengths: Sequence[int], *, block_size: int, model_limit: int | None
) -> Sizes:
    """Fill in what the user left open and refuse what cannot work.

    Args:
        settings: What the user asked for.
        lengths: Prompt length of each request, in tokens.
        block_size: The platform's block size, used where the user named none.
        model_limit: Positions the model was trained for, if it says so.

    Raises:
        ConfigError: With the number that would work.
    """
    size = settings.block_size or block_size
    need = max(lengths) + settings.max_tokens
    max_model_len = _max_model_len(settings, need, model_limit)
    least = blocks_for(max_model_len, size) + 1
    roomy = sum(blocks_for(length + settings.max_tokens, size) for length in lengths) + 1
    num_blocks = settings.num_blocks or max(least, roomy)
    if num_blocks < least:
        raise ConfigError(
            f"--num-blocks {num_blocks} is too small for one request: {max_model_len} tokens in "
            f"blocks of {size} need at least --num-blocks {least} (one is vLLM's null block)"
        )
    max_num_seqs = settings.max_num_seqs or min(len(lengths), MAX_NUM_SEQS)
    return Sizes(size, max_model_len, num_blocks, max_num_seqs)


def _max_model_len(settings: RunSettings, need: int, model_limit: int | None) -> int:
    chosen = settings.max_model_len or need
    if chosen < need:
        raise ConfigError(
            f"--max-model-len {chosen} is too short: the longest prompt and --max-tokens "
            f"{settings.max_tokens} make {need} tokens"
        )
    if model_limit is not None and chosen > model_limit:
        raise ConfigError(
            f"{chosen} tokens are more than the model's {model_limit}: use shorter prompts "
            "or a smaller --max-tokens"
        )
    return chosen


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // block_size)
