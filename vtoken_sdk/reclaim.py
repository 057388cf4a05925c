"""When memory is reclaimed, from whom and how much: pure functions of what the host knows.

Three triggers:

* ``budget`` (:class:`BudgetRule`): a sequence is cut at eviction points;
* ``pressure`` (:class:`PressureRule`): nothing is evicted until an allocation for a running request
  would fail, then sequences are cut to their budget instead of being preempted;
* ``fragmentation`` (:class:`FragmentationRule`): the rule of the vToken paper, for engines whose
  sequences keep holes.

Eviction points are fixed positions in the text, so results depend neither on chunk sizes nor on
load, other requests, preemption or the variant::

    prefill_interval = N              end of prompt P            generated, block size S
    |----N----|----2N---|- ... -------|P-------|P+S------|P+2S ...
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.tensors import ceil_div

if TYPE_CHECKING:
    from collections.abc import Sequence


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

    def first_cut(self, num_prompt_tokens: int, end: int) -> int:
        """Where a sequence is cut for the first time; ``end`` + 1 if it never is."""
        point = self.next_point(num_prompt_tokens, 0)
        while point <= end and not self.num_victims(num_prompt_tokens, point, point, end):
            point = self.next_point(num_prompt_tokens, point)
        return min(point, end + 1)

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


@dataclass(frozen=True, slots=True)
class RunningSequence:
    """A running sequence as the trigger ``pressure`` sees it.

    Attributes:
        req_id: The request.
        live: Its live tokens.
        shared_blocks: Blocks of it that have other owners, so leaving them frees nothing.
        cuttable: Whether it may be cut now; False while its prompt is read, for instance.
        budget: Its own budget, where that is not the rule's.
    """

    req_id: str
    live: int
    shared_blocks: int = 0
    cuttable: bool = True
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Relief:
    """What to do about an allocation that fails.

    Attributes:
        cuts: Request ids with the number of tokens each loses; empty means preempt.
        freed_blocks: Blocks the cuts give back, in place.
    """

    cuts: tuple[tuple[str, int], ...]
    freed_blocks: int

    @property
    def preempt(self) -> bool:
        """Whether nothing is left to cut, so somebody has to be preempted."""
        return not self.cuts


@dataclass(frozen=True, slots=True)
class PressureRule:
    """The ``pressure`` trigger: cut, retry, and only then preempt.

    Call :meth:`relieve` whenever an allocation for a running request would fail, carry out its
    cuts and retry the allocation, until it succeeds or there is nothing to cut. A sequence that
    was cut is small enough not to be named again, so this ends.

    Attributes:
        budget: Live tokens a sequence is cut below (B).
        block_size: Tokens per block (S).
    """

    budget: int
    block_size: int

    def relieve(self, missing_blocks: int, running: Sequence[RunningSequence]) -> Relief:
        """Choose whom to cut.

        The fewest sequences are cut: those that give back most come first, the newest of equals
        before older ones, as it would have been preempted first.

        Args:
            missing_blocks: Blocks the allocation lacks.
            running: The running sequences, oldest first.

        Returns:
            Cuts to ``budget - block_size`` live tokens, so that a block's worth can be generated
            before the budget is reached again. They may give back less than is missing.
        """
        gains = [(self.gain(seq), at, seq) for at, seq in enumerate(running)]
        cuts, freed = [], 0
        for gain, _, seq in sorted(gains, key=lambda g: g[:2], reverse=True):
            if gain < 1 or freed >= missing_blocks:
                break
            cuts.append((seq.req_id, seq.live - self._target(seq)))
            freed += gain
        return Relief(tuple(cuts), freed)

    def gain(self, seq: RunningSequence) -> int:
        """Blocks that cutting a sequence gives back; 0 where it cannot be cut."""
        target = self._target(seq)
        if not seq.cuttable or seq.live <= target:
            return 0
        kept = max(ceil_div(target, self.block_size), seq.shared_blocks)
        return max(ceil_div(seq.live, self.block_size) - kept, 0)

    def _target(self, seq: RunningSequence) -> int:
        return (self.budget if seq.budget is None else seq.budget) - self.block_size


class Verdict(StrEnum):
    """What the trigger ``fragmentation`` says, and why it does not fire."""

    FIRE = "fire"
    LITTLE_WASTE = "little waste"
    ENOUGH_FREE = "enough free blocks"
    FEW_CANDIDATES = "few candidates"
    NO_HEADROOM = "no headroom"


@dataclass(frozen=True, slots=True)
class PoolState:
    """Block counts of a pool, all kept up to date by differences.

    Attributes:
        live_tokens: Live tokens in allocated blocks.
        allocated_blocks: Blocks somebody holds (N).
        free_blocks: Blocks requests may still be given.
        low_blocks: Allocated blocks of low utilisation.
        headroom: Blocks reserved for relocation and free now.
        block_size: Tokens per block (S).
    """

    live_tokens: int
    allocated_blocks: int
    free_blocks: int
    low_blocks: int
    headroom: int
    block_size: int

    @property
    def waste(self) -> float:
        """The paper's ``F = 1 - sum(n_b) / (N * S)``; 0 for an empty pool."""
        slots = self.allocated_blocks * self.block_size
        return 1 - self.live_tokens / slots if slots else 0.0


@dataclass(frozen=True, slots=True)
class FragmentationRule:
    """The ``fragmentation`` trigger: when it pays to look for a plan.

    Attributes:
        low_watermark: Free blocks at or under which memory counts as short.
        threshold: Waste F above which reclaiming starts, between 0 and 1.
        min_candidates: Blocks of low utilisation there must be; below 2 no plan can gain.
        max_utilisation: The most of a block that may be live for it to count as low.

    Raises:
        ConfigError: If a setting is out of range.
    """

    low_watermark: int
    threshold: float = 0.25
    min_candidates: int = 2
    max_utilisation: float = 0.5

    def __post_init__(self) -> None:
        if not (0 <= self.threshold < 1 and 0 <= self.max_utilisation < 1):
            raise ConfigError(
                "threshold and max_utilisation must be at least 0 and below 1, got "
                f"{self.threshold} and {self.max_utilisation}"
            )
        if self.low_watermark < 0 or self.min_candidates < 1:
            raise ConfigError(
                "low_watermark must be at least 0 and min_candidates at least 1, got "
                f"{self.low_watermark} and {self.min_candidates}"
            )

    def decide(self, pool: PoolState) -> Verdict:
        """Whether to plan now, from counts alone: nothing is scanned."""
        if pool.waste <= self.threshold:
            return Verdict.LITTLE_WASTE
        if pool.free_blocks > self.low_watermark:
            return Verdict.ENOUGH_FREE
        if pool.low_blocks < self.min_candidates:
            return Verdict.FEW_CANDIDATES
        return Verdict.FIRE if pool.headroom else Verdict.NO_HEADROOM
