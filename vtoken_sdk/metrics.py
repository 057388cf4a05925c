"""What a runtime has done so far: counters and sizes, as a dict or for Prometheus.

Counting costs no look at the device: everything comes from numbers the host knows anyway, except
how many tokens really moved, which is added up on the device and fetched only when asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from vtoken_sdk.planner import MovePlan

ACCEPTED = "accepted"

HELP = {
    "vtoken_live_tokens": "Tokens whose KV is kept.",
    "vtoken_dead_tokens": "Evicted tokens whose slots are not reclaimed yet.",
    "vtoken_allocated_blocks": "KV blocks held by running sequences.",
    "vtoken_waste_ratio": "F = 1 - live tokens / slots of allocated blocks.",
    "vtoken_utilisation_ratio": "Live tokens / slots of allocated blocks.",
    "vtoken_cuts_total": "Cuts of a sequence.",
    "vtoken_evicted_tokens_total": "Tokens evicted.",
    "vtoken_freed_blocks_total": "Blocks that left a sequence at a cut.",
    "vtoken_taken_blocks_total": "Fresh blocks that cuts took to copy to.",
    "vtoken_moved_tokens_total": "Tokens copied to another slot.",
    "vtoken_moved_tokens_per_freed_block": "Tokens copied for each block that was freed.",
    "vtoken_plans_accepted_total": "Plans that were carried out.",
    "vtoken_plans_declined_total": "Plans that were declined, by reason.",
    "vtoken_policy_fallbacks_total": "Choices of a policy that had to be replaced, by policy.",
}
_LABELS = {"vtoken_plans_declined_total": "reason", "vtoken_policy_fallbacks_total": "policy"}


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What KV memory holds now.

    Attributes:
        live_tokens: Tokens whose KV is kept.
        dead_tokens: Evicted tokens whose slots are not reclaimed yet.
        allocated_blocks: Blocks held.
        block_size: Tokens per block (S).
    """

    live_tokens: int = 0
    dead_tokens: int = 0
    allocated_blocks: int = 0
    block_size: int = 1

    @property
    def utilisation(self) -> float:
        """Live tokens / slots; 1.0 where nothing is allocated."""
        slots = self.allocated_blocks * self.block_size
        return self.live_tokens / slots if slots else 1.0

    @property
    def waste(self) -> float:
        """F of the paper, 1 - utilisation."""
        return 1.0 - self.utilisation


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """All numbers at one moment.

    Attributes:
        occupancy: Sizes.
        cuts: Sequences cut.
        evicted_tokens: Tokens evicted.
        freed_blocks: Blocks that left a table.
        taken_blocks: Fresh blocks taken to copy to.
        moved_tokens: Tokens copied; None where it was not asked for.
        plans_accepted: Plans carried out.
        plans_declined: Plans declined, by reason.
        fallbacks: Choices replaced, by policy.
    """

    occupancy: Occupancy
    cuts: int
    evicted_tokens: int
    freed_blocks: int
    taken_blocks: int
    moved_tokens: int | None
    plans_accepted: int
    plans_declined: Mapping[str, int]
    fallbacks: Mapping[str, int]

    @property
    def moved_per_freed_block(self) -> float | None:
        """Tokens copied for each block freed; None where either is not known."""
        if self.moved_tokens is None or not self.freed_blocks:
            return None
        return self.moved_tokens / self.freed_blocks

    def as_dict(self) -> dict[str, Any]:
        """Values by Prometheus name; those with a label are dicts, unknown ones are left out."""
        values = {
            "vtoken_live_tokens": self.occupancy.live_tokens,
            "vtoken_dead_tokens": self.occupancy.dead_tokens,
            "vtoken_allocated_blocks": self.occupancy.allocated_blocks,
            "vtoken_waste_ratio": self.occupancy.waste,
            "vtoken_utilisation_ratio": self.occupancy.utilisation,
            "vtoken_cuts_total": self.cuts,
            "vtoken_evicted_tokens_total": self.evicted_tokens,
            "vtoken_freed_blocks_total": self.freed_blocks,
            "vtoken_taken_blocks_total": self.taken_blocks,
            "vtoken_moved_tokens_total": self.moved_tokens,
            "vtoken_moved_tokens_per_freed_block": self.moved_per_freed_block,
            "vtoken_plans_accepted_total": self.plans_accepted,
            "vtoken_plans_declined_total": dict(self.plans_declined),
            "vtoken_policy_fallbacks_total": dict(self.fallbacks),
        }
        return {name: value for name, value in values.items() if value is not None}

    def as_text(self) -> str:
        """Prometheus' text format."""
        lines: list[str] = []
        for name, value in self.as_dict().items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {HELP[name]}", f"# TYPE {name} {kind}"]
            if isinstance(value, dict):
                label = _LABELS[name]
                lines += [f'{name}{{{label}="{_escaped(k)}"}} {v}' for k, v in value.items()]
            else:
                lines.append(f"{name} {value}")
        return "\n".join(lines) + "\n"


@dataclass(slots=True)
class Metrics:
    """Counts while a runtime works.

    Args:
        count_moves: Add up moved tokens on the device at every cut (three small kernels).
    """

    count_moves: bool = False
    occupancy: Occupancy = field(default_factory=Occupancy)
    cuts: int = 0
    evicted_tokens: int = 0
    freed_blocks: int = 0
    taken_blocks: int = 0
    plans_accepted: int = 0
    plans_declined: dict[str, int] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)
    _moved: Tensor | None = None

    def count_plan(self, plan: MovePlan) -> None:
        """Count what a plan does to each of its sequences; nothing waits for the device."""
        rows = len(plan.lengths)
        outcomes = plan.outcomes or (ACCEPTED,) * rows
        taken = plan.taken_blocks or (0,) * rows
        for n, m, freed, took, outcome in zip(
            plan.lengths, plan.new_lengths, plan.freed_blocks, taken, outcomes, strict=True
        ):
            if str(outcome) != ACCEPTED:
                self.plans_declined[str(outcome)] = self.plans_declined.get(str(outcome), 0) + 1
                continue
            self.plans_accepted += 1
            self.cuts += 1
            self.evicted_tokens += n - m
            self.freed_blocks += freed
            self.taken_blocks += took
        if self.count_moves:
            moved = plan.num_moves().sum()
            self._moved = moved if self._moved is None else self._moved + moved

    def count_fallback(self, policy: str) -> None:
        """Count that a policy's choice was replaced."""
        self.fallbacks[policy] = self.fallbacks.get(policy, 0) + 1

    def snapshot(self, moved: bool = False) -> MetricsSnapshot:
        """All numbers now.

        Args:
            moved: Fetch the moved tokens too, which waits for the device; they are known only
                where ``count_moves`` is set.
        """
        moved_tokens = None
        if moved and self.count_moves:
            moved_tokens = 0 if self._moved is None else int(self._moved)
        return MetricsSnapshot(
            self.occupancy,
            self.cuts,
            self.evicted_tokens,
            self.freed_blocks,
            self.taken_blocks,
            moved_tokens,
            self.plans_accepted,
            dict(self.plans_declined),
            dict(self.fallbacks),
        )


class PrometheusExporter:
    """Publishes snapshots as real counters and gauges, so multi-process mode works too.

    Args:
        registry: The registry to use; prometheus-client's default one by default.

    Raises:
        ConfigError: If prometheus-client is not installed.
    """

    def __init__(self, registry: Any = None) -> None:
        try:
            import prometheus_client as client
        except ImportError as error:
            raise ConfigError(
                "metrics need prometheus-client: pip install 'vtoken-sdk[prometheus]'"
            ) from error
        self._published: dict[tuple[str, str | None], float] = {}
        self._metrics: dict[str, Any] = {}
        where = registry or client.REGISTRY
        for name, text in HELP.items():
            labels = [_LABELS[name]] if name in _LABELS else []
            if name.endswith("_total"):
                self._metrics[name] = client.Counter(name, text, labels, registry=where)
            else:
                self._metrics[name] = client.Gauge(
                    name, text, labels, registry=where, multiprocess_mode="livemostrecent"
                )

    def publish(self, snapshot: MetricsSnapshot) -> None:
        """Bring the registry up to date with a snapshot."""
        for name, value in snapshot.as_dict().items():
            for label, number in value.items() if isinstance(value, dict) else ((None, value),):
                self._publish(name, label, number)

    def _publish(self, name: str, label: str | None, number: float) -> None:
        metric = self._metrics[name] if label is None else self._metrics[name].labels(label)
        if name.endswith("_total"):
            metric.inc(number - self._published.get((name, label), 0))
            self._published[name, label] = number
        else:
            metric.set(number)


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
