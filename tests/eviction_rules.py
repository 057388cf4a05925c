"""What an eviction trace must say, worked out again from the written rules.

Nothing here is imported from the product but the reader of traces: if both agree, the rules were
understood twice.

The rules. A request has a prompt of P tokens and asks for M more; blocks hold S tokens; the budget
is B; N is the optional prefill interval. Eviction points are the lengths N, 2N ... below P, then P,
P + S, P + 2S and so on. At a point with n live tokens the request is cut to B - S live tokens, if n
plus what comes before the next point (at most S, or what is left of the request) exceeds B. The
first ``sinks`` and the last ``recent`` positions never leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vtoken_sdk.testing.trace import Cut, load_trace, merge_lives

__all__ = ["Cut", "Rules", "load_trace", "merge_lives"]


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that decide when a request is cut and by how much."""

    budget: int
    block_size: int
    max_model_len: int
    prefill_interval: int | None = None
    sinks: int = 4
    recent: int = 0

    def generated(self, prompt: int, max_tokens: int) -> int:
        """Tokens a request generates when nothing stops it early."""
        return min(max_tokens, self.max_model_len - prompt)

    def points(self, prompt: int, max_tokens: int) -> Iterator[int]:
        """Lengths at which the request is computed to exactly there and goes on afterwards."""
        if self.prefill_interval:
            yield from range(self.prefill_interval, prompt, self.prefill_interval)
        # The last token sampled is never computed: the last step starts one token before it.
        last = prompt + self.generated(prompt, max_tokens) - 2
        yield from range(prompt, last + 1, self.block_size)

    def cuts(self, prompt: int, max_tokens: int) -> list[tuple[int, int]]:
        """``(length, tokens that leave)`` for each cut of a request that runs to its end."""
        end = min(prompt + max_tokens, self.max_model_len)
        removed, cuts = 0, []
        for length in self.points(prompt, max_tokens):
            live = length - removed
            if live + min(self.block_size, end - length) > self.budget:
                count = live - (self.budget - self.block_size)
                cuts.append((length, count))
                removed += count
        return cuts

    def streaming_victims(self, prompt: int, max_tokens: int) -> list[tuple[int, list[int]]]:
        """``(length, token ids that leave)`` for the policy ``streaming-llm``: oldest first."""
        live: list[int] = []
        known, cuts = 0, []
        for length, count in self.cuts(prompt, max_tokens):
            live += range(known, length)
            known = length
            evictable = [t for t in live if self.sinks <= t < length - self.recent]
            victims = evictable[:count]
            live = [t for t in live if t not in set(victims)]
            cuts.append((length, victims))
        return cuts

    def check(
        self, cuts: Iterable[Cut], prompt: int, max_tokens: int, *, finished: bool = True
    ) -> None:
        """Check every cut of a request, whatever its policy is.

        Args:
            cuts: The cuts of one request, all lives.
            prompt: Tokens in its prompt.
            max_tokens: Tokens it asked for.
            finished: Whether it ran to its end; else it may have been cut fewer times.

        Raises:
            AssertionError: If it was not cut when and by how much it should have been, or if tokens
                left that were dead, pinned or not computed yet.
        """
        expected = self.cuts(prompt, max_tokens)
        cuts = list(cuts)
        for life in sorted({cut.life for cut in cuts}):
            self._check_life([cut for cut in cuts if cut.life == life], expected)
        merged = merge_lives(cuts)
        if finished:
            got = [(cut.length, len(cut.evicted)) for cut in merged]
            assert got == expected, f"cuts {got}, but should be {expected}"

    def _check_life(self, cuts: list[Cut], expected: list[tuple[int, int]]) -> None:
        got = [(cut.length, len(cut.evicted)) for cut in cuts]
        assert got == expected[: len(got)], f"cuts {got}, but should be {expected}"
        dead: set[int] = set()
        for cut in cuts:
            victims = set(cut.evicted)
            where = f"{cut.request} life {cut.life} length {cut.length}"
            assert len(victims) == len(cut.evicted), f"{where}: evicted a token twice"
            assert not victims & dead, f"{where}: evicted the dead {sorted(victims & dead)}"
            pinned = [t for t in victims if not self.sinks <= t < cut.length - self.recent]
            assert not pinned, f"{where}: evicted the pinned {sorted(pinned)}"
            dead |= victims
            assert cut.live == cut.length - len(dead), f"{where}: says {cut.live} are live"
