"""Random numbers of single requests on a CPU, where vLLM cannot take draws back.

A request that brings a seed has a generator of its own. Where its prompt is read in parts, vLLM
samples a token at the end of each part, throws it away and takes back what was drawn for it, by the
offset that only CUDA's generators have. On a CPU that is an error, and the end of the engine: one
request is enough. Eviction points cut prompts into parts more often than stock vLLM does.
"""

from __future__ import annotations

from typing import Any

import torch


class RewindableGenerator(torch.Generator):
    """A CPU generator that can take back all that was drawn since :meth:`mark`."""

    def mark(self) -> None:
        """What is drawn from here on can be taken back."""
        self._marked = self.get_state()

    def get_offset(self) -> int:
        """Of no meaning here; vLLM hands it back to :meth:`set_offset`, less what was drawn."""
        return 0

    def set_offset(self, offset: int) -> torch.Generator:  # noqa: ARG002
        """Take back what was drawn since the mark: vLLM calls this for nothing else."""
        return self.set_state(self._marked)


def rewindable(like: torch.Generator) -> RewindableGenerator:
    """One that draws what ``like`` would draw next."""
    generator = RewindableGenerator(device=like.device)
    generator.set_state(like.get_state())
    generator.mark()
    return generator


def mark_generators(input_batch: Any, requests: dict[str, Any]) -> None:
    """Before a step samples: make its generators rewindable, and mark where they are.

    Args:
        input_batch: vLLM's persistent batch.
        requests: What vLLM's runner knows of requests, by id; a generator outlives its place in
            the batch there.
    """
    for row, generator in input_batch.generators.items():
        if not isinstance(generator, RewindableGenerator):
            own = rewindable(generator)
            input_batch.generators[row] = requests[input_batch.req_ids[row]].generator = own
        else:
            generator.mark()
