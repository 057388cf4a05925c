"""The independent judge of tokens generated under eviction.

One forward pass of the Hugging Face model over prompt and output, with eager attention in float32
and a mask in which each row sees exactly the tokens that were live when the engine computed it. No
paged cache, no block, no move: only the victims are taken from the engine's trace.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from vtoken_sdk.testing.trace import Cut

MARGIN = 1e-4
"""Two float32 engines may order logits that are closer than this differently."""

LOGPROB_TOLERANCE = 5e-4
"""How far the log probability of a generated token may be from the reference's."""


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
        error: Largest difference in log probability, over the tokens generated.
        full_compared: Tokens also compared with full attention.
        full_equal: Those of them that full attention would have generated, too.
        full_far: Those whose log probability under full attention is out of tolerance.
    """

    compared: int = 0
    excused: int = 0
    wrong: tuple[Wrong, ...] = ()
    error: float = 0.0
    full_compared: int = 0
    full_equal: int = 0
    full_far: int = 0

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(
            self.compared + other.compared,
            self.excused + other.excused,
            self.wrong + other.wrong,
            max(self.error, other.error),
            self.full_compared + other.full_compared,
            self.full_equal + other.full_equal,
            self.full_far + other.full_far,
        )

    @property
    def exact(self) -> bool:
        """Whether every token is the reference's, or excused, and as probable as there."""
        return not self.wrong and self.error <= LOGPROB_TOLERANCE

    @property
    def full_agreement(self) -> float:
        """Share of tokens that eviction did not change. Near 1 the comparison proves nothing."""
        return self.full_equal / max(self.full_compared, 1)

    def __str__(self) -> str:
        text = f"{self.compared} tokens, {len(self.wrong)} wrong, {self.excused} excused"
        text += f", log probabilities within {self.error:.0e}"
        if self.full_compared:
            text += f"; full attention: {self.full_equal} of {self.full_compared} tokens agree"
            text += f", {self.full_far} log probabilities are off"
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
        logprobs: Sequence[float] | None = None,
        full: bool = False,
        first: int = 0,
    ) -> Verdict:
        """Compare generated tokens with the reference's.

        Args:
            prompt: Token ids of the prompt.
            output: Token ids the engine generated.
            cuts: The cuts of this request, one per length.
            logprobs: The engine's log probability of each of them. Tokens of a fluent model change
                little under eviction; these show every difference.
            full: Also compare with full attention, the tokens generated after the first cut.
            first: Generated tokens that are not judged, because other cuts were made before them.
        """
        import torch

        if len(output) <= first:
            return Verdict()
        logits = self.logits(prompt, output, cuts)
        margins = (logits.max(-1).values - _of(logits, output)).tolist()
        differ = [
            Wrong(i, token, want, margin)
            for i, (token, want, margin) in enumerate(
                zip(output, logits.argmax(-1).tolist(), margins, strict=True)
            )
            if token != want and i >= first
        ]
        wrong = tuple(w for w in differ if w.margin >= MARGIN)
        verdict = Verdict(len(output) - first, len(differ) - len(wrong), wrong)
        mine = _of(logits.log_softmax(-1), output)
        if logprobs is not None:
            error = (mine - torch.tensor(logprobs))[first:].abs().max()
            verdict = replace(verdict, error=float(error))
        if not (full and cuts):
            return verdict
        return verdict + self._full(prompt, output, cuts, mine, first)

    def _full(
        self,
        prompt: Sequence[int],
        output: Sequence[int],
        cuts: Sequence[Cut],
        mine: Tensor,
        first: int,
    ) -> Verdict:
        # output[i] is chosen in row P - 1 + i
        first = max(cuts[0].length - len(prompt) + 1, first)
        if len(output) <= first:
            return Verdict()
        logits = self.logits(prompt, output)
        agree = [a == b for a, b in zip(logits.argmax(-1).tolist(), output, strict=True)]
        far = (_of(logits.log_softmax(-1), output) - mine).abs() > LOGPROB_TOLERANCE
        return Verdict(
            full_compared=len(output) - first,
            full_equal=sum(agree[first:]),
            full_far=int(far[first:].sum()),
        )


def _of(values: Tensor, tokens: Sequence[int]) -> Tensor:
    """The entry of one token per row."""
    import torch

    return values.gather(1, torch.tensor(tokens)[:, None])[:, 0]
