"""Simulate: the paper's pool sizes, or a trace, through vLLM's own scheduler without a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vtoken_sdk.bench.page.sections import simulate_paper, simulate_trace

if TYPE_CHECKING:
    from vtoken_sdk.bench.page.content import Section
    from vtoken_sdk.bench.results import ResultFile


def section(result: ResultFile) -> Section:
    """The section of either kind."""
    if "preset" in result.settings and "trace" not in result.settings:
        return simulate_paper.section(result)
    return simulate_trace.section(result)
