"""The requests of a bench: lengths from a workload, cut to the context, as token ids."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING

from vtoken_sdk.testing.tiny_model import VOCAB_SIZE
from vtoken_sdk.workloads import Workload, WorkloadRequest, load_workload
from vtoken_sdk.workloads.texts import prompt_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vtoken_sdk.bench.load.settings import LoadSettings

_SPECIAL = 10
"""Token ids below are not used for text by the tiny model."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as an engine takes it.

    Attributes:
        prompt: Token ids.
        output: Tokens it generates.
    """

    prompt: list[int]
    output: int

    @property
    def length(self) -> int:
        """Prompt and output together."""
        return len(self.prompt) + self.output


def workload_of(settings: LoadSettings, count: int) -> Workload:
    """``count`` requests, no longer than the context; those of a workload come again in turn.

    What is too long loses its end: first the output what exceeds a half of the context, then the
    prompt.

    Raises:
        ConfigError: If the workload cannot be read.
    """
    if settings.workload is None:
        output = max(settings.context // 4, 1)
        spec = f"synthetic:prompt={settings.context - output},output={output},requests={count}"
    else:
        spec = settings.workload
    found = load_workload(spec, limit=count, seed=settings.seed)
    requests = tuple(islice(cycle(found.requests), count))
    clipped = tuple(_clipped(request, settings.context) for request in requests)
    return Workload(found.name, clipped, found.prefix_chunk, found.source)


def _clipped(request: WorkloadRequest, context: int) -> WorkloadRequest:
    output = min(request.output_tokens, max(context // 2, 1))
    prompt = min(request.prompt_tokens, context - output)
    return WorkloadRequest(request.arrival_s, prompt, output, request.prefix_ids, request.text)


def encoded(
    workload: Workload, encode: Callable[[str], Sequence[int]], context: int
) -> list[Request]:
    """The requests in token ids.

    Args:
        workload: From :func:`workload_of`.
        encode: The model's tokeniser.
        context: Most tokens of a request; texts are as long as they are, so they are cut here.
    """
    prompts = prompt_ids(workload, encode)
    return [
        Request(list(ids[: context - request.output_tokens]), request.output_tokens)
        for ids, request in zip(prompts, workload.requests, strict=True)
    ]


def tiny_encode(text: str) -> list[int]:
    """A tokeniser for the tiny model, which has none: a word or a mark is one token."""
    words = re.findall(r"\w+|[^\w\s]", text)
    return [_SPECIAL + zlib.crc32(word.encode()) % (VOCAB_SIZE - _SPECIAL) for word in words]
