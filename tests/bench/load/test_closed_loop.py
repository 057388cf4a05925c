"""The closed loop over an engine whose clock stands still between steps."""

from __future__ import annotations

import pytest

from vtoken_sdk.bench.load.closed_loop import Event, Loop, Served, closed_loop, figures


class FakeEngine:
    """Serves everything it was given at once: a step takes a second and makes one token of each."""

    def __init__(self, outputs):
        self.outputs, self.now = outputs, 0.0
        self.inside, self.made, self.most, self.order = {}, 0, 0, []

    def clock(self):
        return self.now

    def submit(self, index):
        assert index not in self.inside
        self.inside[index] = self.outputs[index]
        self.order.append((index, self.now))
        self.most = max(self.most, len(self.inside))

    def step(self):
        self.now += 1.0
        for index in list(self.inside):
            self.inside[index] -= 1
            done = not self.inside[index]
            if done:
                del self.inside[index]
            yield Event(index, [index], done, cached=7)


def run(outputs, concurrency, **more):
    engine = FakeEngine(outputs)
    return engine, closed_loop(engine, range(len(outputs)), concurrency, clock=engine.clock, **more)


def test_the_next_one_comes_when_one_finishes() -> None:
    engine, loop = run([3, 1, 2, 4], 2)
    assert engine.most == 2
    assert engine.order == [(0, 0.0), (1, 0.0), (2, 1.0), (3, 3.0)]
    assert {i: (r.submitted, r.first, r.finished) for i, r in loop.served.items()} == {
        0: (0.0, 1.0, 3.0),
        1: (0.0, 1.0, 1.0),
        2: (1.0, 2.0, 3.0),
        3: (3.0, 4.0, 7.0),
    }
    assert loop.seconds == 7.0
    assert not loop.stopped
    assert [len(r.tokens) for r in loop.served.values()] == [3, 1, 2, 4]
    assert loop.served[0].cached == 7


@pytest.mark.parametrize("concurrency", [1, 3, 5, 9])
def test_never_more_in_flight_than_asked_for(concurrency: int) -> None:
    outputs = [1 + i % 3 for i in range(7)]
    engine, loop = run(outputs, concurrency)
    assert engine.most == min(concurrency, len(outputs))
    assert sorted(loop.served) == list(range(7))
    assert all(len(loop.served[i].tokens) == n for i, n in enumerate(outputs))


def test_a_loop_can_be_stopped_and_submits_nothing_more() -> None:
    engine, loop = run([1, 5, 5], 2, stop=lambda finished: finished == 1)
    assert loop.stopped
    assert sorted(loop.served) == [0, 1]
    assert sorted(engine.inside) == [1]


def test_figures() -> None:
    served = {
        0: Served(0.0, first=1.0, finished=3.0, tokens=[5, 6, 7]),
        1: Served(1.0, first=3.0, finished=3.0, tokens=[8]),
    }
    found = figures(Loop(served, seconds=4.0))
    assert found["tokens_per_s"] == 1.0
    assert found["p50_latency_s"] == 2.5
    assert found["p95_latency_s"] == 2.95
    assert found["p50_ttft_s"] == 1.5
    assert found["p50_tpot_ms"] == 1000.0  # of the one that has a second token
    assert found["generated_tokens"] == 4


def test_digests_tell_tokens_apart() -> None:
    one, other = Served(0.0, tokens=[1, 2]), Served(5.0, tokens=[1, 2])
    assert one.digest == other.digest != Served(0.0, tokens=[2, 1]).digest
