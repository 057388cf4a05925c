"""Prompts: from the command line or from files, and into token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue or to answer.

    Args:
        name: What to call it in reports.
        text: The text itself.
    """

    name: str
    text: str


def gather_prompts(texts: Sequence[str], files: Sequence[Path]) -> list[Prompt]:
    """Collect the prompts of a command line, texts first.

    Raises:
        ConfigError: If there is none, one is empty, or a file cannot be read as UTF-8 text.
    """
    prompts = [Prompt(f"prompt {i + 1}", text) for i, text in enumerate(texts)]
    prompts += [Prompt(path.name, _read(path)) for path in files]
    if not prompts:
        raise ConfigError('no prompt: give --prompt "some text" or --prompt-file FILE')
    for prompt in prompts:
        if not prompt.text.strip():
            raise ConfigError(f"{prompt.name} is empty: a prompt needs at least one word")
    return prompts


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"prompt file {path} does not exist") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"prompt file {path} is not UTF-8 text (byte {error.start}): save it as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigError(f"prompt file {path} cannot be read: {error.strerror}") from None


def encode(tokenizer: PreTrainedTokenizerBase, text: str, *, raw: bool) -> list[int]:
    """Token ids of one prompt, as a user's turn where the model has a chat template."""
    if raw or not getattr(tokenizer, "chat_template", None):
        return _ids(tokenizer(text))
    turn = [{"role": "user", "content": text}]
    return _ids(tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True))


def _ids(encoding: Any) -> list[int]:
    return [int(token) for token in encoding["input_ids"]]
