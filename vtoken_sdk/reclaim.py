"""When a sequence is cut and how many tokens leave: pure functions of lengths.

Eviction points are fixed positions in the text, so results depend neither on chunk sizes nor on
load, other requests, preemption or the variant::

    prefill_interval = N              end of prompt P            generated, block size S
    |----N----|----2N---|- ... -------|P-------|P+S------|P+2S ...
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BudgetRule:
    """The ``budget`` trigger.

    Attributes:
        budget: Most live tokens of a sequence after its prompt (B).
        block_size: Tokens per block (S), also the distance of eviction points while generating.
        prefill_interval: Distance of eviction points within the prompt (N); None for none.
    """

    budget: int
    block_size: int
    prefill_interval: int | None = None

    def next_point(self, num_prompt_tokens: int, num_computed_tokens: int) -> int:
        """The first eviction point behind ``num_computed_tokens``; no chunk may cross it."""
        if num_computed_tokens >= num_prompt_tokens:
            generated = num_computed_tokens - num_prompt_tokens
            return num_prompt_tokens + (generated // self.block_size + 1) * self.block_size
        if self.prefill_interval is None:
            return num_prompt_tokens
        following = (num_computed_tokens // self.prefill_interval + 1) * self.prefill_interval
        return min(following, num_prompt_tokens)

    def is_point(self, num_prompt_tokens: int, num_computed_tokens: int) -> bool:
        """Whether ``num_computed_tokens`` is an eviction point."""
        if num_computed_tokens >= num_prompt_tokens:
            return (num_computed_tokens - num_prompt_tokens) % self.block_size == 0
        interval = self.prefill_interval
        return (
            interval is not None and num_computed_tokens > 0 and num_computed_tokens % interval == 0
        )

    def num_victims(
        self, num_prompt_tokens: int, num_computed_tokens: int, live: int, end: int
    ) -> int:
        """How many tokens a sequence loses now.

        Args:
            num_prompt_tokens: Length of the prompt.
            num_computed_tokens: Tokens computed so far.
            live: How many of those are live.
            end: Length of the text when the request has generated all it may.

        Returns:
            0 where there is nothing to do, else as many as leave ``budget - block_size`` live.
        """
        if not self.is_point(num_prompt_tokens, num_computed_tokens):
            return 0
        room = min(self.block_size, max(end - num_computed_tokens, 0))
        if live + room <= self.budget:
            return 0
        return live - (self.budget - self.block_size)

    def peak_tokens(self, num_prompt_tokens: int, end: int) -> int:
        """Most tokens a sequence ever holds at once.

        That is while its prompt is read: the whole prompt, or with ``prefill_interval`` what the
        last point left and one more interval.
        """
        reading = num_prompt_tokens
        if self.prefill_interval is not None:
            reading = min(reading, self.budget - self.block_size + self.prefill_interval)
        return min(end, max(reading, self.budget))

    def later_tokens(self, end: int) -> int:
        """Most tokens a sequence holds once its prompt is read."""
        return min(end, self.budget)
