"""Attention and keys to score: random ones, and those of the small model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vtoken_sdk.policy import Policy, Signal
from vtoken_sdk.scoring import LayeredPolicy
from vtoken_sdk.testing import make_view
from vtoken_sdk.testing.views import GivenTokens

TEXT = """The old harbour master kept a ledger of every ship that came in, its cargo, its crew and
the weather of that day. In the year of the great storm he wrote only one line, and nobody has ever
found out what it meant: seven bells, no wind, and the sea as flat as a table until the morning."""


@dataclass(frozen=True)
class Tensors:
    """A forward pass over n tokens.

    Attributes:
        attention: ``[layers, heads, n, n]``, causal.
        keys: ``[layers, n, kv_heads, head_size]``.
    """

    attention: torch.Tensor
    keys: torch.Tensor

    def layers_of(self, policy: Policy) -> Tensors:
        """The layers a policy looks at."""
        assert isinstance(policy, LayeredPolicy)
        layers = list(policy.scored_layers(len(self.keys)))
        return Tensors(self.attention[layers], self.keys[layers])

    def view(self, policy: Policy) -> GivenTokens:
        """What the policy is shown at the end of the prompt."""
        scored = self.layers_of(policy) if Signal.ATTENTION in policy.signals else self
        rows = scored.attention.mean((0, 1)).float()
        return make_view(policy, self.keys.shape[1], attention=rows, keys=list(self.keys.float()))


def random_tensors(n: int = 60, layers: int = 5, heads: int = 4, kv_heads: int = 2) -> Tensors:
    """Causal attention of random queries over random keys, with a few keys that repeat."""
    torch.manual_seed(n)
    queries = 2 * torch.randn(layers, n, heads, 16)
    keys = torch.randn(layers, n, kv_heads, 16)
    keys[:, 20:30] = keys[:, 5:15] + 0.3 * torch.randn(layers, 10, kv_heads, 16)
    return Tensors(causal_attention(queries, keys), keys)


def causal_attention(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Softmax of the newest ``q`` tokens' queries ``[layers, q, heads, d]`` over all keys."""
    heads, n, q = queries.shape[2], keys.shape[1], queries.shape[1]
    keys = keys.repeat_interleave(heads // keys.shape[2], dim=2)
    logits = torch.einsum("lqhd,lkhd->lhqk", queries, keys).double() / keys.shape[-1] ** 0.5
    future = torch.arange(n) > torch.arange(n - q, n)[:, None]
    return logits.masked_fill(future, -torch.inf).softmax(-1)


def model_tensors(folder: str) -> Tensors:
    """Eager attention and rotated keys of a model on a short text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        out = model(**tokens, output_attentions=True, use_cache=True)
    keys = torch.stack([layer.keys[0].transpose(0, 1) for layer in out.past_key_values.layers])
    return Tensors(torch.cat(out.attentions).double(), keys)
