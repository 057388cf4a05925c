"""What every workload is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request of a workload.

    Attributes:
        arrival_s: Seconds after the first one.
        prompt_tokens: Length of the prompt; with ``text``, about.
        output_tokens: Tokens it generates.
        prefix_ids: One number per chunk of the prompt: requests whose lists begin alike share that
            part of their text. Empty where nothing is known.
        text: The prompt, where the data has one.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_ids: tuple[int, ...] = ()
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order in which they arrive.

    Attributes:
        name: What reports call it.
        requests: At least one.
        prefix_chunk: Tokens per entry of ``prefix_ids``; 0 where there are none.
        source: Where it comes from and under which licence.
    """

    name: str
    requests: tuple[WorkloadRequest, ...]
    prefix_chunk: int = 0
    source: str = ""
