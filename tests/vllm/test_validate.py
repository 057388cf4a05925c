"""``vtoken validate --vllm``: the policy on a real engine."""

from __future__ import annotations

from tests.testing.conftest import broken
from vtoken_sdk.testing.results import Side, Status
from vtoken_sdk.testing.runner import Settings, validate

ONLY = Settings(only=["exact-on-vllm"])


def test_every_token_is_that_of_masked_attention(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("VTOKEN_CACHE", str(tmp_path))  # the tiny model only
    (result,) = validate("h2o", ONLY).results
    assert result.status is Status.PASSED
    assert "240 tokens, 0 wrong" in result.note
    assert result.note.endswith("small model not prepared: run 'vtoken model prepare'")


def test_a_policy_at_fault_stops_the_engine_and_is_blamed(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("VTOKEN_CACHE", str(tmp_path))
    (result,) = validate(broken("answers"), ONLY).results
    assert result.status is Status.FAILED
    assert result.finding is not None
    assert "torch.int64" in result.finding.message
    assert result.finding.side is Side.POLICY
