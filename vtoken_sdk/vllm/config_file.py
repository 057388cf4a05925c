"""vLLM's ``--config FILE``: read and understood before vLLM meets it.

vLLM takes what YAML gives it for a table of its options, and fails with whatever comes of that.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtoken_sdk.errors import ConfigError, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

OPTION = "--config"
OURS = frozenset(
    {
        "policy", "policy-arg", "preset", "budget", "prefill-interval", "trigger", "strict",
        "check-invariants", "trace",
    }
)  # fmt: skip
"""Options of ``vtoken serve`` itself: vLLM, which reads the file, does not know them."""


def checked_config_file(arguments: Sequence[str]) -> list[str]:
    """Check the file that the arguments name, if they name one.

    Args:
        arguments: What ``vllm serve`` takes.

    Returns:
        The same, with ``--config=FILE``, which vLLM would ignore, as two words.

    Raises:
        ConfigError: Saying what is wrong with the file.
    """
    words: list[str] = []
    for word in arguments:
        words += word.split("=", 1) if word.startswith(f"{OPTION}=") else [word]
    places = [i for i, word in enumerate(words) if word == OPTION]
    if len(places) > 1:
        raise ConfigError(f"{OPTION} is given {len(places)} times; put all into one file")
    for place in places:
        if place + 1 == len(words):
            raise ConfigError(f"{OPTION} needs a file")
        _check(Path(words[place + 1]))
    return words


def _check(file: Path) -> None:
    if file.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{OPTION} {file}: the name has to end in .yaml or .yml")
    options = _read(file)
    if not isinstance(options, dict) or not options:
        raise ConfigError(
            f"{OPTION} {file} holds {_kind(options)}, but should hold options of vllm serve, one "
            "'name: value' per line"
        )
    for name, value in options.items():
        if not isinstance(name, str):
            raise ConfigError(f"{OPTION} {file}: {name!r} is no name of an option")
        if name.replace("_", "-") in OURS:
            raise ConfigError(
                f"{OPTION} {file}: {name} is an option of vtoken, and the file is for those of "
                f"vLLM; put --{name.replace('_', '-')} on the command line"
            )
        if value is None:
            raise ConfigError(f"{OPTION} {file}: {name} has no value")


def _read(file: Path) -> Any:
    import yaml  # type: ignore[import-untyped]  # vLLM brings it along

    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{OPTION} {file} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{OPTION} {file} is no YAML: {one_line(error)}") from None


def _kind(value: Any) -> str:
    if value is None or value == {}:
        return "nothing"
    return "a text" if isinstance(value, str) else f"a {type(value).__name__}"
