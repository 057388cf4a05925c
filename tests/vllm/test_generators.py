"""Draws of a request on a CPU can be taken back, and one server survives who needs that."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from vtoken_sdk.vllm.generators import RewindableGenerator, mark_generators, rewindable


def draw(generator: torch.Generator) -> list[float]:
    return torch.empty(4).exponential_(generator=generator).tolist()


def test_it_draws_what_the_other_one_would():
    plain = torch.Generator(device="cpu").manual_seed(7)
    draw(plain)
    own = rewindable(plain)
    assert [draw(own), draw(own)] == [draw(plain), draw(plain)]


def test_draws_since_the_mark_are_taken_back_as_vllm_does_it():
    own = rewindable(torch.Generator(device="cpu").manual_seed(7))
    kept = draw(own)
    own.mark()
    gone = draw(own)
    own.set_offset(own.get_offset() - 4)
    assert draw(own) == gone != kept


def test_generators_of_a_batch_are_replaced_once_and_marked_at_each_step():
    plain = torch.Generator(device="cpu").manual_seed(7)
    batch = SimpleNamespace(generators={1: plain}, req_ids=["a", "b"])
    requests = {name: SimpleNamespace(generator=plain) for name in ("a", "b")}
    mark_generators(batch, requests)
    own = batch.generators[1]
    assert isinstance(own, RewindableGenerator)
    assert requests["b"].generator is own
    first = draw(own)
    mark_generators(batch, requests)
    assert batch.generators[1] is own
    second = draw(own)
    own.set_offset(-4)
    assert draw(own) == second != first
