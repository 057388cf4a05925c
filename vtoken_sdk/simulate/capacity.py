"""How many requests run at once before somebody is preempted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vtoken_sdk.simulate.engine import SchedulerOnlyEngine, add_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vtoken_sdk.config import VTokenConfig
    from vtoken_sdk.simulate.engine import Counters, Pool
    from vtoken_sdk.simulate.victims import Pattern


def capacity(
    pool: Pool,
    config: VTokenConfig | None,
    lengths: Sequence[tuple[int, int]],
    pattern: Callable[[], Pattern] | None = None,
) -> int:
    """The most requests that run at once, with all of them finished and none preempted.

    All requests are there from the start; as many as may run do. Where an engine preempts, fewer
    are let in, until it does not: by bisection, as letting fewer in never costs more blocks.

    Args:
        pool: The engine; its ``max_num_seqs`` is the most that is tried.
        config: vToken's settings, or None for stock vLLM.
        lengths: (prompt, output) of each request.
        pattern: Makes what says which tokens leave, for the variant ``naive``.
    """

    def run(at_once: int) -> Counters:
        engine = SchedulerOnlyEngine(
            replace(pool, max_num_seqs=at_once), config, pattern=pattern and pattern()
        )
        add_all(engine, lengths)
        return engine.run()

    freely = run(pool.max_num_seqs)
    if not freely.preemptions:
        return freely.max_running
    fits, too_many = 0, freely.max_running
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if run(middle).preemptions:
            too_many = middle
        else:
            fits = middle
    return fits
