from __future__ import annotations

from pathlib import Path


def test_path_before_it_is_prepared(vtoken, tmp_path: Path) -> None:
    done = vtoken("model", "path", VTOKEN_CACHE=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "run `vtoken model prepare`" in done.stderr


def test_prepare_prints_only_the_folder(vtoken, small_model_cache: Path) -> None:
    prepared = vtoken("model", "prepare", VTOKEN_CACHE=str(small_model_cache))
    assert prepared.returncode == 0
    folder = Path(prepared.stdout.rstrip("\n"))
    assert (folder / "config.json").is_file()
    found = vtoken("model", "path", VTOKEN_CACHE=str(small_model_cache))
    assert found.stdout == prepared.stdout


def test_a_cache_that_cannot_be_written(vtoken, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    done = vtoken("model", "prepare", VTOKEN_CACHE=str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert "set VTOKEN_CACHE" in done.stderr
