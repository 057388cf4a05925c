"""No policy cares where in memory a token lies, or which sequences are scored together."""

from __future__ import annotations

import pytest
import torch

from tests.policies.tensors import random_tensors
from vtoken_sdk import registry
from vtoken_sdk.policy import Policy, Signal
from vtoken_sdk.table import TokenTable
from vtoken_sdk.testing import make_view, scores, victims
from vtoken_sdk.testing.views import GivenTokens
from vtoken_sdk.view import LiveTokens

NAMES = [info.name for info in registry.list_policies() if info.builtin and info.name != "kvpress"]
BOTH = pytest.mark.parametrize("preset", ["default", "paper"])


def cut_before(policy: Policy, seed: int) -> GivenTokens:
    """A sequence with holes in its text, given attention by 20 queries since its last cut."""
    torch.manual_seed(seed)
    n = 50 + 3 * seed
    ids = [*sorted(torch.randperm(n + 40)[: n - 1].tolist()), n + 40]
    rows = torch.rand(20, n).float() / n
    keys = list(random_tensors(n).keys)
    columns = {name: torch.rand(n) for name in ("mass", "seen", "counts")}
    return make_view(policy, ids, attention=rows, keys=keys, columns=columns, moment=(seed, 1))


@BOTH
@pytest.mark.parametrize("name", NAMES)
def test_order_in_memory_changes_no_score(name: str, preset: str) -> None:
    args = {} if preset == "default" else {"recent": 6}
    view = cut_before(registry.make_policy(name, args, preset), 1)
    by_token = dict(zip(view.token_ids.tolist(), scores(view).tolist(), strict=True))
    for seed in range(2):
        moved = view.shuffled(seed)
        found = dict(zip(moved.token_ids.tolist(), scores(moved).tolist(), strict=True))
        assert found == by_token  # to the last bit
        assert victims(moved, 16) == victims(view, 16)


class Joined(LiveTokens):
    """Sequences joined end to end, as an engine shows them to elementwise policies."""

    def __init__(self, parts: list[GivenTokens]) -> None:
        self.parts = parts
        table = TokenTable(block_size=16)
        rows = [table.row(str(i)) for i in range(len(parts))]
        table.sync(rows, [part.num_live for part in parts])
        for row, part in zip(rows, parts, strict=True):
            table.token_id[row, : part.num_live] = part.token_ids.int()
        policy = parts[0].given.policy
        super().__init__(table, rows, [part.given.moment for part in parts], policy)
        for name in ("mass", "seen", "counts"):
            self.column(name).copy_(torch.cat([part.column(name) for part in parts]))

    @property
    def attention(self):
        return torch.cat([part.attention for part in self.parts], dim=-1)

    @property
    def query_count(self):
        return torch.cat([part.query_count for part in self.parts])

    def keys(self, layer):
        return torch.cat([part.keys(layer) for part in self.parts])

    @property
    def num_layers(self):
        return self.parts[0].num_layers


@BOTH
@pytest.mark.parametrize("name", [n for n in NAMES if registry.load_policy(n).elementwise])
def test_elementwise_policies_score_joined_sequences_alike(name: str, preset: str) -> None:
    policy = registry.make_policy(name, preset=preset)
    parts = [cut_before(policy, seed) for seed in (1, 2, 3)]
    joined = Joined(parts)
    policy.observe(joined)
    assert torch.equal(policy.score(joined), torch.cat([scores(part) for part in parts]))


@pytest.mark.parametrize("name", NAMES)
def test_policies_read_only_what_they_declare(name: str) -> None:
    policy = registry.make_policy(name)
    torch.manual_seed(0)
    n = 60
    signals = {}
    if Signal.ATTENTION in policy.signals:
        signals["attention"] = torch.rand(20, n) / n
    if Signal.KEYS in policy.signals:
        signals["keys"] = list(torch.randn(2, n, 2, 8))
    found = scores(make_view(policy, n, **signals))
    assert found.dtype is torch.float32
    assert found.isfinite().all()
