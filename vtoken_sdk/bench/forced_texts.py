"""vLLM's door to forced texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

if TYPE_CHECKING:
    from vllm import SamplingParams

    from vtoken_sdk.bench.forcing import Forced

TEXT = "forced_text"
"""The key in ``SamplingParams.extra_args``: a name in :attr:`ForcedTexts.texts`."""


class ForcedTexts(AdapterLogitsProcessor):  # type: ignore[misc]  # vLLM is not followed
    """The logits processor of requests that write a given text."""

    texts: ClassVar[dict[str, Forced]] = {}

    def is_argmax_invariant(self) -> bool:
        """It changes which token is the likeliest."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        """The processor of one request, or None where nothing is forced."""
        name = (params.extra_args or {}).get(TEXT)
        return None if name is None else self.texts[name].force
