"""The independent judge of tokens generated under eviction.

One forward pass of the Hugging Face model over prompt and output, with eager attention in float32
and a mask in which each row sees exactly the tokens that were live when the engine computed it. No
paged cache, no block, no move: only the victims are taken from the engine's trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from vtoken_sdk.testing.trace import Cut

MARGIN = 1e-4
"""Two float32 engines may order logits that are closer than this differently."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """A token the reference would not have generated."""

    position: int
    got: int
    want: int
    margin: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many tokens were judged, and how.

    Attributes:
        compared: Tokens judged.
        excused: Tokens that differ, where the reference holds both to be equally good.
        wrong: Tokens that differ, with no excuse.
        full_compared: Tokens also compared with full attention.
        full_equal: Those of them that full attention would have generated, too.
    """

    compared: int = 0
    excused: int = 0
    wrong: tuple[Wrong, ...] = ()
    full_compared: int = 0
    full_equal: int = 0

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(
            self.compared + other.compared,
            self.excused + other.excused,
            self.wrong + other.wrong,
            self.full_compared + other.full_compared,
            self.full_equal + other.full_equal,
        )

    @property
    def exact(self) -> bool:
        """Whether every token is the reference's, or excused."""
        return not self.wrong

    @property
    def full_agreement(self) -> float:
        """Share of tokens that eviction did not change. Near 1 the comparison proves nothing."""
        return self.full_equal / max(self.full_compared, 1)

    def __str__(self) -> str:
        text = f"{self.compared} tokens, {len(self.wrong)} wrong, {self.excused} excused"
        if self.full_compared:
            text += f", full attention agrees on {self.full_equal} of {self.full_compared}"
        return text


def total(verdicts: Sequence[Verdict]) -> Verdict:
    """Sum of verdicts."""
    return reduce(Verdict.__add__, verdicts, Verdict())


class Reference:
    """A Hugging Face model with eager attention in float32."""

    def __init__(self, folder: Path | str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        # With more, threads that wait for each other collapse when another process wants a core.
        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def logits(
        self, prompt: Sequence[int], output: Sequence[int], cuts: Sequence[Cut] = ()
    ) -> Tensor:
        """Logits each generated token was chosen from, float32 ``[len(output), vocab]``.

        Args:
            prompt: Token ids of the prompt.
            output: Token ids generated; they are the input of the rows after them, so a wrong token
                does not make the rest of the output wrong.
            cuts: The cuts of this request, one per length (:func:`merge_lives`).
        """
        import torch

        tokens = [*prompt, *output[:-1]]
        n = len(tokens)
        visible = torch.ones(n, n, dtype=torch.bool).tril()
        for cut in cuts:
            visible[cut.length :, list(cut.evicted)] = False
        # A lost diagonal would be a row that does not see itself: no cut can have asked for that.
        assert visible.diagonal().all(), "a cut evicted tokens that were not computed yet"
        bias = torch.zeros(n, n).masked_fill(~visible, float("-inf"))[None, None]
        with torch.inference_mode():
            logits: Tensor = self.model(
                torch.tensor([tokens]),
                attention_mask=bias,
                position_ids=torch.arange(n)[None],
                use_cache=False,
                logits_to_keep=len(output),
            ).logits[0]
        return logits

    def judge(
        self,
        prompt: Sequence[int],
        output: Sequence[int],
        cuts: Sequence[Cut] = (),
        *,
        full: bool = False,
    ) -> Verdict:
        """Compare generated tokens with the reference's.

        Args:
            prompt: Token ids of the prompt.
            output: Token ids the engine generated.
            cuts: The cuts of this request, one per length.
            full: Also count tokens full attention agrees on, among those generated after a cut.
        """
        if not output:
            return Verdict()
        logits = self.logits(prompt, output, cuts)
        best, want = logits.max(-1)
        wrong, excused = [], 0
        for i, token in enumerate(output):
            margin = float(best[i] - logits[i, token])
            if int(want[i]) == token:
                continue
            if margin < MARGIN:
                excused += 1
            else:
                wrong.append(Wrong(i, token, int(want[i]), margin))
        equal = self._full(prompt, output, cuts) if full and cuts else []
        return Verdict(len(output), excused, tuple(wrong), len(equal), sum(equal))

    def _full(
        self, prompt: Sequence[int], output: Sequence[int], cuts: Sequence[Cut]
    ) -> list[bool]:
        first = max(cuts[0].length - len(prompt) + 1, 0)  # output[i] is chosen in row P - 1 + i
        want = self.logits(prompt, output).argmax(-1).tolist()
        return [a == b for a, b in zip(want[first:], output[first:], strict=True)]
