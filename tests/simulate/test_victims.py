"""Victims on token ids alone, and the blocks PagedAttention would hold for the rest."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.simulate.victims import (
    OF_POLICY,
    HeavyVictims,
    OldestVictims,
    RandomVictims,
    RecordedVictims,
    VictimModel,
    make_pattern,
)
from vtoken_sdk.vllm.directive import Cut, HeldBlocks

S = 16


def cut(length: int, count: int, life: int = 0, req_id: str = "r") -> Cut:
    return Cut(req_id, length, count, 0, 0, 0, life)


class Watched:
    """Keeps what a pattern chose."""

    def __init__(self, pattern):
        self.pattern, self.victims_of, self.live = pattern, [], []

    def victims(self, cut, ids, evictable):
        places = self.pattern.victims(cut, ids, evictable)
        self.victims_of.append(set(ids[places].tolist()))
        self.live.append(set(ids.tolist()))
        return places


PATTERNS = {"random": RandomVictims(1), "oldest": OldestVictims(), "heavy": HeavyVictims(1)}


@pytest.mark.parametrize("name", PATTERNS)
def test_cuts_take_live_tokens_and_spare_the_pinned(name):
    watched = Watched(PATTERNS[name])
    model = VictimModel(watched, sinks=4, recent=8, block_size=S)
    live: set[int] = set()
    for length, count, known in [(200, 150, 0), (216, 16, 200), (232, 16, 216)]:
        live |= set(range(known, length))
        (held,) = model.carry_out([cut(length, count)])
        victims = watched.victims_of[-1]
        assert len(victims) == count
        assert victims <= live - set(range(4)) - set(range(length - 8, length))
        live -= victims
        homes = {token // S for token in live}
        assert held == HeldBlocks("r", length, len(homes), (length - 1) // S in homes)


def test_the_last_block_may_have_died():
    model = VictimModel(RandomVictims(0), sinks=4, recent=0, block_size=S)
    told = [model.carry_out([cut(33, 29, req_id=str(i))])[0].tail_held for i in range(200)]
    assert not all(told)


def test_a_next_life_begins_anew():
    watched = Watched(OldestVictims())
    model = VictimModel(watched, sinks=0, recent=0, block_size=S)
    model.carry_out([cut(100, 50)])
    model.carry_out([cut(100, 50, life=1)])
    assert watched.live[1] == set(range(100))
    model.forget("r")
    model.carry_out([cut(64, 1, life=1)])
    assert watched.live[2] == set(range(64))


def test_heavy_tokens_stay_and_random_ones_do_not():
    stay = {}
    for name in ("heavy", "random"):
        watched = Watched(PATTERNS[name])
        model = VictimModel(watched, sinks=0, recent=0, block_size=S)
        for at in range(40):
            model.carry_out([cut(512 + 16 * at, 384 if not at else 16)])
        stay[name] = len(watched.live[1] & watched.live[-1])
    assert stay["heavy"] > 1.5 * stay["random"]


def test_heavy_victims_do_not_depend_on_the_process_or_on_the_order():
    ids = np.arange(100, dtype=np.int32)
    places = np.arange(100, dtype=np.int32)
    a = HeavyVictims(3).victims(cut(100, 10), ids, places)
    b = HeavyVictims(3).victims(cut(100, 10), ids[::-1].copy(), places)
    assert set(ids[a]) == set(ids[::-1][b])
    assert set(a) != set(HeavyVictims(4).victims(cut(100, 10), ids, places))
    assert set(a) != set(HeavyVictims(3).victims(cut(100, 10, req_id="q"), ids, places))
    assert sorted(a)[:3] == [5, 31, 41]


def test_every_built_in_policy_has_a_pattern():
    from importlib.metadata import entry_points

    names = {point.name for point in entry_points(group="vtoken.policies")}
    built_in = {n for n in names if n in OF_POLICY} | {"kvpress"}
    assert set(OF_POLICY) <= built_in


def write(path, *lines) -> RecordedVictims:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RecordedVictims(path)


def test_recorded_victims(tmp_path):
    line = {"request": "r", "length": 40, "evicted": [3, 30, 7]}
    watched = Watched(write(tmp_path / "t.jsonl", line))
    model = VictimModel(watched, sinks=0, recent=0, block_size=S)
    model.carry_out([cut(40, 3)])
    assert watched.victims_of == [{3, 7, 30}]
    with pytest.raises(ConfigError, match="request r at 56 tokens is not recorded"):
        model.carry_out([cut(56, 3)])
    for wrong in (cut(40, 4, life=1), cut(40, 2, life=2)):
        with pytest.raises(ConfigError, match="lost other tokens than are cut here"):
            model.carry_out([wrong])


def test_recorded_victims_must_be_alive(tmp_path):
    first = {"request": "r", "length": 40, "evicted": [3, 30]}
    second = {"request": "r", "length": 56, "evicted": [3, 55]}
    model = VictimModel(write(tmp_path / "t.jsonl", first, second), 0, 0, S)
    model.carry_out([cut(40, 2)])
    with pytest.raises(ConfigError, match="lost other tokens"):
        model.carry_out([cut(56, 2)])


def test_malformed_recordings_name_line_and_field(tmp_path):
    with pytest.raises(ConfigError, match="line 1, field 'evicted'"):
        write(tmp_path / "t.jsonl", {"request": "r", "length": 3, "evicted": [-1]})
    with pytest.raises(ConfigError, match="line 1, field 'length': is missing"):
        write(tmp_path / "t.jsonl", {"request": "r", "evicted": [1]})
    with pytest.raises(ConfigError, match="no evictions"):
        write(tmp_path / "t.jsonl")


def test_patterns_by_name(tmp_path):
    assert isinstance(make_pattern("oldest", 0), OldestVictims)
    with pytest.raises(ConfigError, match="there are no victims 'x'"):
        make_pattern("x", 0)
