from __future__ import annotations

from tests.conftest import ROOT
from vtoken_sdk.vllm.features import REFUSALS


def test_the_compatibility_page_is_what_the_code_refuses_by(run) -> None:
    done = run(str(ROOT / "docs/compatibility_reference.py"), "--check")
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs/reference/compatibility.md").read_text()
    for refusal in REFUSALS:
        assert f"| {refusal.feature} | {refusal.reason} |" in page
