"""The runtime: batched cuts against a model made of dictionaries, and the paper's three calls."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

from vtoken_sdk import Policy, ScoringPolicy
from vtoken_sdk.cut import SequenceCut
from vtoken_sdk.errors import ConfigError, PolicyError, TableError
from vtoken_sdk.invariants import check_token_conservation, check_unique_live_slots, content_hash
from vtoken_sdk.relocate import ScatteredKV, StridedKV, copy_kv, gather_kv
from vtoken_sdk.runtime import VTokenRuntime
from vtoken_sdk.tensors import ceil_div
from vtoken_sdk.view import Moment

S = 4


@dataclass
class OldestFirst(ScoringPolicy):
    """Keeps the newest; counts how often it looked at each token."""

    name = "oldest-first"
    elementwise = True

    def observe(self, seq):
        seq.column("looks").add_(1.0)

    def score(self, seq):
        return seq.token_ids.float()


@dataclass
class OneByOne(OldestFirst):
    name = "one-by-one"
    elementwise = False


@dataclass
class Selecting(Policy):
    name = "selecting"

    def select(self, seq, count):
        order = seq.token_ids.masked_fill(~seq.evictable, 10**9).argsort()
        return order[:count]


@dataclass
class Shuffled(ScoringPolicy):
    name = "shuffled"
    elementwise = True
    recent: int = 2

    def score(self, seq):
        return seq.random()


class Engine:
    """A KV cache in which each token's value is its (request, token) code."""

    def __init__(self, policy, blocks=64, scattered=False):
        self.runtime = VTokenRuntime(policy, S)
        self.kv = torch.full((2, blocks, S, 3), -1.0)
        if scattered:
            offsets = torch.arange(S * 3).view(S, 3)
            self.layout = ScatteredKV(tuple(layer.view(-1) for layer in self.kv), offsets, S * 3)
        else:
            self.layout = StridedKV((self.kv,))
        self.free = list(range(blocks))
        self.tables, self.length = {}, {}

    def append(self, req, count):
        table = self.tables.setdefault(req, [])
        start = self.length.get(req, (0, 0))
        live, total = start
        for i in range(count):
            if (live + i) // S >= len(table):
                table.append(self.free.pop(random.randrange(len(self.free))))
            at = live + i
            self.kv[:, table[at // S], at % S] = float(hash_code(req, total + i))
        self.length[req] = (live + count, total + count)

    def cut(self, counts, leave=None):
        leave = leave or {}
        cuts = [
            SequenceCut(r, k, Moment(self.length[r][1], key=len(r)), leave.get(r))
            for r, k in counts.items()
        ]
        width = max(len(self.tables[r]) for r in counts)
        tables = torch.tensor(
            [self.tables[r] + [0] * (width - len(self.tables[r])) for r in counts]
        )
        result = self.runtime.cut(cuts, tables, self.layout)
        for i, (req, count) in enumerate(counts.items()):
            live, total = self.length[req]
            need = ceil_div(live - count, S)
            kept = result.plan.kept_blocks
            order = range(need) if kept is None else kept[i, :need].tolist()
            new = [self.tables[req][j] for j in order]
            self.free += [b for b in self.tables[req] if b not in new]
            self.tables[req] = new
            self.length[req] = (live - count, total)
        return result

    def check(self):
        slots = []
        for req in self.tables:
            if req not in self.runtime.table:
                continue
            ids = self.runtime.table.token_ids(req)
            at = self.runtime.table.slot_mapping(req, self.tables[req])
            slots.append(at)
            want = torch.tensor([float(hash_code(req, t)) for t in ids.tolist()])
            got = gather_kv(self.layout, at)
            assert torch.equal(got, want[:, None].expand_as(got)), "KV does not belong to its token"
        check_unique_live_slots(slots, self.kv.shape[1] * S)


def hash_code(req, token):
    return ord(req[0]) * 1000 + token


@pytest.mark.parametrize("policy", [OldestFirst(), OneByOne(), Selecting(), Shuffled()])
@pytest.mark.parametrize("scattered", [False, True])
def test_many_cuts_keep_every_token_with_its_kv(policy, scattered):
    random.seed(1)
    engine = Engine(policy, scattered=scattered)
    alive = {r: [] for r in "abc"}
    for _ in range(25):
        for req in "abc":
            count = random.randint(1, 7)
            total = engine.length.get(req, (0, 0))[1]
            alive[req] += range(total, total + count)
            engine.append(req, count)
        counts = {
            r: random.randint(0, engine.length[r][0] - 8) for r in "abc" if engine.length[r][0] > 8
        }
        if not counts or not any(counts.values()):
            continue
        leave = {}
        if random.random() < 0.5:
            for r, k in counts.items():
                held, need = len(engine.tables[r]), ceil_div(engine.length[r][0] - k, S)
                leave[r] = tuple(random.sample(range(held), held - need))
        result = engine.cut(counts, leave)
        for i, (req, count) in enumerate(counts.items()):
            gone = result.victims[i, :count]
            after = engine.runtime.table.token_ids(req)
            check_token_conservation(torch.tensor(alive[req]), gone, after)
            alive[req] = after.tolist()
            assert min(gone.tolist(), default=4) >= 4, "a sink was evicted"
        engine.check()


def test_all_forms_of_one_policy_agree():
    chosen = []
    for policy in (OldestFirst(), OneByOne(), Selecting()):
        random.seed(3)
        engine = Engine(policy)
        for req, n in (("a", 30), ("bb", 17), ("c", 22)):
            engine.append(req, n)
        result = engine.cut({"a": 13, "bb": 4, "c": 9})
        chosen.append(
            [sorted(row[:k]) for row, k in zip(result.victims.tolist(), (13, 4, 9), strict=True)]
        )
    assert chosen[0] == chosen[1] == chosen[2]
    assert chosen[0][1] == [4, 5, 6, 7]


def test_columns_of_a_policy_survive_cuts():
    engine = Engine(OldestFirst())
    engine.append("a", 12)
    engine.cut({"a": 4})
    engine.append("a", 4)
    engine.cut({"a": 4})
    ids = engine.runtime.table.token_ids("a").tolist()
    looks = engine.runtime.table.column("looks")[0, : len(ids)].tolist()
    assert dict(zip(ids, looks, strict=True)) == {t: 2.0 if t < 12 else 1.0 for t in ids}


def test_random_victims_depend_on_content_only():
    def victims(order):
        engine = Engine(Shuffled())
        for req in order:
            engine.append(req, 40)
        result = engine.cut(dict.fromkeys(order, 20))
        return {r: sorted(row) for r, row in zip(order, result.victims.tolist(), strict=True)}

    together = victims(["a", "bb", "ccc"])
    assert victims(["ccc", "a", "bb"]) == together
    assert victims(["bb"])["bb"] == together["bb"]
    assert together["a"] != together["bb"]  # keys differ


def test_after_a_cut_the_caller_says_which_blocks_are_left():
    engine = Engine(OldestFirst())
    engine.append("a", 12)
    engine.runtime.sync_new_tokens("a", engine.tables["a"], 12)
    engine.cut({"a": 4}, {"a": (0,)})
    with pytest.raises(TableError, match="blocks of request 'a' are not known: sync_new_tokens"):
        engine.runtime.slot_mapping("a")
    engine.runtime.sync_new_tokens("a", engine.tables["a"], 12)
    assert engine.runtime.block_ids("a") == engine.tables["a"]
    engine.check()


def test_evictions_that_wait_for_a_plan_come_before_a_cut():
    engine = Engine(OldestFirst())
    engine.append("a", 12)
    engine.runtime.sync_new_tokens("a", engine.tables["a"], 12)
    engine.runtime.evict_token("a", 5)
    with pytest.raises(TableError, match="'a' has evicted tokens"):
        engine.cut({"a": 4})
    plan = engine.runtime.plan("a")
    assert plan.new_lengths == (11,)
    engine.runtime.apply_moves("a", plan)


def test_wrong_answers_name_the_policy():
    @dataclass
    class Short(ScoringPolicy):
        name = "short"

        def score(self, seq):
            return seq.token_ids[:-1].float()

    engine = Engine(Short())
    engine.append("a", 12)
    with pytest.raises(PolicyError, match=r"'short': score\(\) returned torch.float32 \[11\]"):
        engine.cut({"a": 4})


class TestThreeCalls:
    """The interface of the paper, one sequence at a time."""

    def make(self):
        runtime = VTokenRuntime(None, S)
        kv = torch.arange(32 * S, dtype=torch.float32).view(1, 32, S, 1).clone()
        runtime.sync_new_tokens("r", [12, 5, 20], 10)
        return runtime, StridedKV((kv,))

    def test_evict_plan_copy_apply(self):
        runtime, layout = self.make()
        slots = {t: runtime.slot_of("r", t) for t in range(10)}
        assert (slots[0], slots[9]) == (48, 20 * S + 1)
        before = {
            t: content_hash(gather_kv(layout, torch.tensor([s]))).item() for t, s in slots.items()
        }
        for token in (1, 6, 7, 8):
            runtime.evict_token("r", token)
        assert runtime.table.num_live("r") == 10  # nothing moved yet
        plan = runtime.plan("r")
        copy_kv(layout, *runtime.move_slots("r", plan))
        assert runtime.apply_moves("r", plan) == [20]
        assert runtime.block_ids("r") == [12, 5]
        for token in (0, 2, 3, 4, 5, 9):
            slot = torch.tensor([runtime.slot_of("r", token)])
            assert content_hash(gather_kv(layout, slot)).item() == before[token]

    def test_chosen_blocks_may_leave(self):
        runtime, layout = self.make()
        for token in (0, 1, 2, 3):
            runtime.evict_token("r", token)
        plan = runtime.plan("r", leave=[0])
        assert plan.num_moves().tolist() == [0]
        copy_kv(layout, *runtime.move_slots("r", plan))
        assert runtime.apply_moves("r", plan) == [12]
        assert runtime.slot_mapping("r").tolist() == [20, 21, 22, 23, 80, 81]

    def test_dead_tokens(self):
        runtime, _ = self.make()
        runtime.evict_token("r", 3)
        with pytest.raises(TableError, match="already evicted"):
            runtime.evict_token("r", 3)
        runtime.apply_moves("r", runtime.plan("r"))
        with pytest.raises(TableError, match="evicted before"):
            runtime.evict_token("r", 3)
        with pytest.raises(TableError, match="not live"):
            runtime.slot_of("r", 3)
        assert runtime.table.num_live("r") == 9

    def test_stale_plans_change_nothing(self):
        runtime, _ = self.make()
        runtime.evict_token("r", 3)
        plan = runtime.plan("r")
        runtime.evict_token("r", 4)
        with pytest.raises(TableError, match="stale"):
            runtime.apply_moves("r", plan)
        assert runtime.table.token_ids("r").tolist() == list(range(10))
        assert runtime.block_ids("r") == [12, 5, 20]

    def test_syncs_that_do_not_fit(self):
        runtime, _ = self.make()
        for blocks, total in (([12, 5, 20], 9), ([12, 5], 12), ([12, 12, 5], 12)):
            with pytest.raises(TableError):
                runtime.sync_new_tokens("r", blocks, total)
        runtime.evict_token("r", 0)
        with pytest.raises(TableError, match="first"):
            runtime.sync_new_tokens("r", [12, 5, 20], 11)
        assert runtime.table.num_tokens("r") == 10

    @pytest.mark.parametrize(
        "call",
        [
            lambda runtime: runtime.evict_token("nobody", 0),
            lambda runtime: runtime.plan("nobody"),
            lambda runtime: runtime.plan_repack("nobody", 4),
            lambda runtime: runtime.block_ids("nobody"),
            lambda runtime: runtime.slot_mapping("nobody"),
            lambda runtime: runtime.slot_of("nobody", 0),
            lambda runtime: runtime.move_slots("nobody", runtime.plan("r")),
            lambda runtime: runtime.apply_moves("nobody", runtime.plan("r")),
        ],
    )
    def test_unknown_requests(self, call):
        runtime, _ = self.make()
        with pytest.raises(TableError, match=r"'nobody' .*sync_new_tokens"):
            call(runtime)
        assert "nobody" not in runtime.table

    def test_the_end_of_all_tokens(self):
        runtime, _ = self.make()
        for token in range(10):
            runtime.evict_token("r", token)
        assert runtime.apply_moves("r", runtime.plan("r")) == [12, 5, 20]
        for plan in (lambda: runtime.plan("r"), lambda: runtime.plan_repack("r", 4)):
            with pytest.raises(TableError, match="request 'r' has no live tokens"):
                plan()
        assert runtime.slot_mapping("r").tolist() == runtime.block_ids("r") == []
        runtime.sync_new_tokens("r", [7], 11)
        assert runtime.slot_of("r", 10) == 7 * S

    @pytest.mark.parametrize("size", [0, -1, 1.5, "4", None, True, torch.tensor(4.0)])
    def test_block_sizes_are_positive_integers(self, size):
        with pytest.raises(ConfigError, match="block_size must be"):
            VTokenRuntime(None, size)
