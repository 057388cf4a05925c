"""Tokenises the texts and has every engine's arguments checked, before any engine is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.needle import ANSWER_TOKENS
from vtoken_sdk.bench.prepare import load_tokenizer, platform_block_size
from vtoken_sdk.bench.prompts import encode
from vtoken_sdk.bench.sizing import blocks_for
from vtoken_sdk.errors import ConfigError
from vtoken_sdk.versions import ENGINE, versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

MOST_AT_ONCE = 32
"""Requests an engine runs together; the others wait. The pool has room for so many."""

Named = list[list[str]]
"""Names and texts."""


def prepare(
    settings: dict[str, Any], model: str, held: Named, prompts: Named, needles: Named
) -> dict[str, Any]:
    """Encode everything and check the engines.

    Args:
        settings: Of the bench.
        model: Local folder or Hugging Face name.
        held: Texts that segments are cut from.
        prompts: Texts to answer.
        needles: Prompts that go in without a chat template.

    Returns:
        ``requests`` per part (``name``, ``ids``, ``forced``, ``max_tokens``), ``engines`` per name
        (``native``, ``POLICY/naive``, ``POLICY/vtoken``), ``block_size`` and ``versions``.

    Raises:
        UsageError: If anything asked for cannot be done.
    """
    tokenizer, limit = load_tokenizer(model)
    requests = {
        "perplexity": segments(settings, [[n, _raw(tokenizer, text)] for n, text in held]),
        "generations": _prompts(tokenizer, prompts, settings["max_tokens"], raw=False),
        "needles": _prompts(tokenizer, needles, ANSWER_TOKENS, raw=True),
    }
    longest = max(
        len(request["ids"]) + request["max_tokens"]
        for part in requests.values()
        for request in part
    )
    if limit is not None and longest > limit:
        raise ConfigError(f"{longest} tokens are more than the model's {limit}: use shorter texts")
    return {
        "requests": requests,
        "engines": _engines(settings, model, longest),
        "block_size": platform_block_size(),
        "versions": versions(*ENGINE),
    }


def segments(settings: dict[str, Any], texts: Sequence[list[Any]]) -> list[dict[str, Any]]:
    """Pieces of texts that do not overlap, taken from each text in turn.

    Args:
        settings: ``segments``, ``context`` and ``scored``.
        texts: Names and token ids.

    Raises:
        ConfigError: If the texts are too short.
    """
    if not texts:
        return []
    context, length = settings["context"], settings["context"] + settings["scored"]
    places = [(name, ids, i) for name, ids in texts for i in range(len(ids) // length)]
    places.sort(key=lambda place: place[2])  # stable: a round over the texts, then the next
    if len(places) < settings["segments"]:
        raise ConfigError(
            f"--segments {settings['segments']}: the texts have {len(places)} pieces of {length} "
            "tokens; use fewer or shorter ones (--context, --scored), or larger texts (--data)"
        )
    found = []
    for name, ids, i in places[: settings["segments"]]:
        piece = ids[i * length : (i + 1) * length]
        found.append({
            "name": f"{name} {i + 1}",
            "ids": piece[:context],
            "forced": piece[context:],
            "max_tokens": settings["scored"],
        })  # fmt: skip
    return found


def _raw(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return encode(tokenizer, text, raw=True)


def _prompts(
    tokenizer: PreTrainedTokenizerBase, texts: Named, max_tokens: int, *, raw: bool
) -> list[dict[str, Any]]:
    return [
        {"name": name, "ids": encode(tokenizer, text, raw=raw), "max_tokens": max_tokens}
        for name, text in texts
    ]


def _engines(settings: dict[str, Any], model: str, longest: int) -> dict[str, dict[str, Any]]:
    from vtoken_sdk.vllm import engine_args

    size = platform_block_size()
    options = {
        "dtype": settings["dtype"],
        "block_size": size,
        "max_model_len": longest,
        "num_gpu_blocks_override": MOST_AT_ONCE * blocks_for(longest, size) + 1,
        "max_num_seqs": MOST_AT_ONCE,
        "enforce_eager": True,
    }
    evicting = {
        "preset": settings["preset"],
        "budget": max(settings["budgets"]),  # requests name their own
        "prefill_interval": settings["prefill_interval"],
        "seed": settings["seed"],
    }
    variants = [("native", settings["policies"][0], "native")]
    for policy in settings["policies"]:
        variants += [(f"{policy}/{variant}", policy, variant) for variant in ("naive", "vtoken")]
    return {
        name: engine_args(model, policy=policy, variant=variant, **evicting, **options)
        for name, policy, variant in variants
    }
