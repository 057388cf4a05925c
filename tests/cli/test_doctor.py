"""What ``vtoken doctor`` makes of what an engine shows; the engine itself is in tests/vllm."""

from __future__ import annotations

import json

import pytest

from vtoken_sdk.bench import child
from vtoken_sdk.bench.child import JobError
from vtoken_sdk.cli import main

SEEN = {
    "platform": {"name": "cpu", "device": "cpu"},
    "engine": {
        "runner": "V1", "attention_backend": "CPU_ATTN", "kernel_block_sizes": ["multiples of 32"],
        "block_size": 32, "layout": "StridedKV", "layout_found": "probed", "kv_dtype": "float32",
    },
    "canary": {
        "cuts": 3, "evicted_tokens": 160, "freed_blocks": 6, "lost_blocks": 0, "tokens": 80,
        "wrong_tokens": 0,
    },
}  # fmt: skip


@pytest.fixture
def shows(monkeypatch):
    """Let the engine show something."""
    monkeypatch.setattr("vtoken_sdk.bench.run.require_vllm", lambda: None)

    def shows(seen=None, error=None):
        def answer(job, *, log, on_progress):
            assert job == {"job": "doctor"}
            if error:
                raise error
            return seen

        monkeypatch.setattr(child, "run_job", answer)

    return shows


def doctor(*options):
    with pytest.raises(SystemExit) as exit_:
        main(["doctor", *options])
    return exit_.value.code


def test_all_is_well(shows, capsys):
    shows(SEEN)
    assert doctor() == 0
    out = capsys.readouterr().out
    for words in ("vtoken-sdk", "multiples of 32; 32 in use", "3 cuts freed 6 blocks; 0 lost"):
        assert words in out
    assert "FAILED" not in out
    assert "prefix caching" in out


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"freed_blocks": 0}, "blocks come back"),
        ({"lost_blocks": 1}, "blocks come back"),
        ({"wrong_tokens": 2}, "tokens"),
    ],
)
def test_what_is_wrong_is_shown(change, check, shows, capsys):
    shows(SEEN | {"canary": SEEN["canary"] | change})
    assert doctor("--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["ok"]
    assert [each["check"] for each in told["checks"] if not each["ok"]] == [check]


def test_where_tokens_cannot_be_compared_it_says_so(shows, capsys):
    shows(SEEN | {"canary": SEEN["canary"] | {"wrong_tokens": None}})
    assert doctor() == 0
    assert "not compared on this platform" in capsys.readouterr().out


def test_an_engine_that_does_not_start(shows, capsys):
    shows(error=JobError("no hooks\nThe full log is /nowhere"))
    assert doctor() == 1
    out = capsys.readouterr().out
    assert "no hooks; --verbose shows vLLM's log" in out
    assert "/nowhere" not in out


def test_without_vllm_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("vtoken_sdk.bench.run.importlib.util.find_spec", lambda name: None)
    assert doctor("--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert "vtoken-sdk[cpu]" in told["checks"][0]["seen"]
    assert told["compatibility"]
