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
    settings: RunSettings,
    lengths: Sequence[int],
    *,
    block_size: int,
    model_limit: int | None,
    least: bool = False,
) -> Sizes:
    """Fill in what the user left open and refuse what cannot work.

    Args:
        settings: What the user asked for.
        lengths: Prompt length of each request, in tokens.
        block_size: The platform's block size, used where the user named none.
        model_limit: Positions the model was trained for, if it says so.
        least: Whether the prompts may be longer than ``lengths``, not having been tokenised yet.

    Raises:
        ConfigError: With the number that would work.
    """
    size = settings.block_size or block_size
    need = max(lengths) + settings.max_tokens
    about = "at least " if least else ""
    max_model_len = _max_model_len(settings, need, model_limit, about)
    fewest = blocks_for(max_model_len, size) + 1
    roomy = sum(blocks_for(length + settings.max_tokens, size) for length in lengths) + 1
    num_blocks = settings.num_blocks or max(fewest, roomy)
    if num_blocks < fewest:
        tokens = max_model_len if settings.max_model_len else f"{about}{need}"
        raise ConfigError(
            f"--num-blocks {num_blocks} is too small for one request: {tokens} tokens in "
            f"blocks of {size} need at least --num-blocks {fewest} (one is vLLM's null block)"
        )
    max_num_seqs = settings.max_num_seqs or min(len(lengths), MAX_NUM_SEQS)
    _check_batch(settings.max_num_batched_tokens, max_num_seqs)
    return Sizes(size, max_model_len, num_blocks, max_num_seqs)


def check_sizes(
    settings: RunSettings, requests: int, *, block_size: int, model_limit: int | None
) -> None:
    """Refuse what cannot work however short the prompts turn out to be.

    Args:
        settings: What the user asked for.
        requests: How many there are.
        block_size: The platform's block size, used where the user named none.
        model_limit: Positions the model was trained for, if it is known.

    Raises:
        ConfigError: With the least that could work.
    """
    lengths = [1] * min(requests, MAX_NUM_SEQS)
    choose_sizes(settings, lengths, block_size=block_size, model_limit=model_limit, least=True)


def _max_model_len(settings: RunSettings, need: int, model_limit: int | None, about: str) -> int:
    chosen = settings.max_model_len
    if chosen is not None and chosen < need:
        raise ConfigError(
            f"--max-model-len {chosen} is too short: the longest prompt and --max-tokens "
            f"{settings.max_tokens} make {about}{need} tokens"
        )
    if model_limit is not None and need > model_limit:
        raise ConfigError(
            f"{about}{need} tokens are more than the model's {model_limit}: use shorter prompts "
            "or a smaller --max-tokens"
        )
    if chosen is not None and model_limit is not None and chosen > model_limit:
        raise ConfigError(
            f"--max-model-len {chosen} is more than the model's {model_limit} tokens; use "
            f"{model_limit} or less, or leave it out"
        )
    return chosen or need


def _check_batch(max_num_batched_tokens: int | None, max_num_seqs: int) -> None:
    """A step computes at least one token of each running request."""
    if max_num_batched_tokens is not None and max_num_batched_tokens < max_num_seqs:
        raise ConfigError(
            f"--max-num-batched-tokens {max_num_batched_tokens} is too small for {max_num_seqs} "
            f"requests at once: use at least {max_num_seqs}, or a smaller --max-num-seqs"
        )


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // block_size)
