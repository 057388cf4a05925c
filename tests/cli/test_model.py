from __future__ import annotations

from pathlib import Path


def test_path_before_it_is_prepared(vtoken, tmp_path: Path) -> None:
    done = vtoken("model", "path", VTOKEN_CACHE=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "run `vtoken model prepare`" in done.stderr


def test_path_and_prepare_agree_on_a_prepared_model(vtoken, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "SmolLM2-135M-Instruct"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    for command in ("path", "prepare"):
        done = vtoken("model", command, VTOKEN_CACHE=str(tmp_path))
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{folder}\n", "")


def test_a_cache_that_cannot_be_written(vtoken, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    done = vtoken("model", "prepare", VTOKEN_CACHE=str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert "set VTOKEN_CACHE" in done.stderr
