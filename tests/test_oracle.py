"""The judge is judged: it agrees with real deletion from a cache, and it notices every fault."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.eviction_rules import Cut, Rules, merge_lives
from vtoken_sdk.testing.oracle import Reference, total
from vtoken_sdk.testing.tiny_model import VOCAB_SIZE, make_tiny_model

pytest.importorskip("transformers")

RULES = Rules(budget=64, block_size=16, max_model_len=512, recent=4)
MAX_TOKENS = 40


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return Reference(make_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def run(reference):
    """Prompt, output and cuts of a decoder that really deletes keys and values from its cache."""
    return evicting_decoder(reference.model, random.Random(1), prompt_length=90)


def evicting_decoder(model, rng, prompt_length):
    import torch
    from transformers import DynamicCache

    prompt = [rng.randrange(10, VOCAB_SIZE) for _ in range(prompt_length)]
    tokens, live, cuts, cache = list(prompt), [], [], DynamicCache()
    counts = dict(RULES.cuts(prompt_length, MAX_TOKENS))
    computed = 0
    while len(tokens) < prompt_length + MAX_TOKENS:
        if computed in counts:
            evictable = [t for t in live if RULES.sinks <= t < computed - RULES.recent]
            victims = rng.sample(evictable, counts[computed])
            keep = [i for i, t in enumerate(live) if t not in victims]
            for layer in cache.layers:
                layer.keys = layer.keys[:, :, keep]
                layer.values = layer.values[:, :, keep]
            live = [live[i] for i in keep]
            cuts.append(Cut("r", 0, "vtoken", computed, tuple(victims), len(live), 0, 0))
        new = tokens[computed:]
        causal = torch.ones(len(new), len(new), dtype=torch.bool).tril()
        visible = torch.cat([torch.ones(len(new), len(live), dtype=torch.bool), causal], 1)
        bias = torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))[None, None]
        with torch.inference_mode():
            logits = model(
                torch.tensor([new]),
                attention_mask=bias,
                position_ids=torch.arange(computed, len(tokens))[None],
                past_key_values=cache,
            ).logits[0, -1]
        live += range(computed, len(tokens))
        computed = len(tokens)
        tokens.append(int(logits.argmax()))
    return prompt, tokens[prompt_length:], cuts


def test_it_agrees_with_a_cache_from_which_tokens_were_deleted(reference, run):
    prompt, output, cuts = run
    RULES.check(cuts, len(prompt), MAX_TOKENS)
    verdict = reference.judge(prompt, output, cuts, full=True)
    assert verdict.exact
    assert verdict.compared == MAX_TOKENS == len(output)
    assert len(cuts) == 3
    assert verdict.full_agreement < 0.2, "the model does not notice what it attends to"


def test_it_notices_one_altered_token_and_judges_the_rest_on_its_own(reference, run):
    prompt, output, cuts = run
    output = [*output[:5], (output[5] + 1) % VOCAB_SIZE, *output[6:]]
    verdict = reference.judge(prompt, output, cuts)
    assert verdict.wrong[0].position == 5
    assert verdict.wrong[0].margin > 1e-4


@pytest.mark.parametrize("which", [0, 1, 2])
def test_it_notices_one_altered_victim(reference, run, which):
    """Tokens may stay the same by luck, their probabilities do not."""
    prompt, output, cuts = run
    logprobs = reference.logits(prompt, output, cuts).log_softmax(-1).max(-1).values.tolist()
    assert reference.judge(prompt, output, cuts, logprobs=logprobs).exact
    evicted = set(cuts[which].evicted)
    dead = {t for cut in cuts for t in cut.evicted}
    spared = next(t for t in range(40, cuts[which].length - 4) if t not in dead)
    altered = tuple(sorted(evicted - {min(evicted)} | {spared}))
    cuts = [*cuts[:which], replace(cuts[which], evicted=altered), *cuts[which + 1 :]]
    assert not reference.judge(prompt, output, cuts, logprobs=logprobs).exact


def test_it_notices_a_forgotten_cut_and_a_late_one(reference, run):
    prompt, output, cuts = run
    assert not reference.judge(prompt, output, cuts[:-1]).exact
    late = [replace(cut, length=cut.length + 1) for cut in cuts]
    assert not reference.judge(prompt, output, late).exact


def test_a_token_as_good_as_the_best_is_excused_and_counted(reference, run, monkeypatch):
    prompt, output, cuts = run
    output = [*output[:-1], (output[-1] + 1) % VOCAB_SIZE]
    logits = reference.logits(prompt, output, cuts).clone()
    logits[-1, output[-1]] = logits[-1].max() - 5e-5
    monkeypatch.setattr(reference, "logits", lambda *_: logits)
    verdict = reference.judge(prompt, output, cuts)
    assert verdict.exact
    assert verdict.excused == 1
    logits[-1, output[-1]] -= 1e-4
    assert not reference.judge(prompt, output, cuts).exact


def test_verdicts_add_up(reference, run):
    prompt, output, cuts = run
    one = reference.judge(prompt, output, cuts, full=True)
    assert total([one, one]).compared == 2 * one.compared
    assert str(total([])) == "0 tokens, 0 wrong, 0 excused, log probabilities within 0e+00"


class TestRules:
    def test_by_hand(self):
        # Prompt 100, budget 64, blocks of 32: cut to 32 at 100; at 132 there are 64 live and 32 to
        # come, so to 32 again; at 164 only 6 tokens are left, 64 + 6 is still too many.
        rules = Rules(budget=64, block_size=32, max_model_len=512)
        assert rules.cuts(100, 70) == [(100, 68), (132, 32), (164, 32)]
        assert rules.streaming_victims(100, 70) == [
            (100, list(range(4, 72))),
            (132, list(range(72, 104))),
            (164, list(range(104, 136))),
        ]

    def test_nothing_is_cut_where_all_of_it_fits(self):
        rules = Rules(budget=96, block_size=32, max_model_len=512)
        assert rules.cuts(40, 56) == []
        assert rules.cuts(40, 57) == [(72, 8)]

    def test_the_last_token_needs_no_room(self):
        # 33 tokens end in the step that starts at 131; with 34 a step starts at 132.
        rules = Rules(budget=64, block_size=32, max_model_len=512)
        assert [length for length, _ in rules.cuts(100, 33)] == [100]
        assert [length for length, _ in rules.cuts(100, 34)] == [100, 132]
        assert rules.cuts(100, 1) == []

    def test_long_prompts_are_cut_on_the_way(self):
        rules = Rules(budget=64, block_size=32, max_model_len=512, prefill_interval=128)
        assert rules.cuts(300, 2) == [(128, 96), (256, 128), (300, 44)]
        assert rules.cuts(256, 2) == [(128, 96), (256, 128)]

    def test_the_context_ends_a_request(self):
        rules = Rules(budget=64, block_size=32, max_model_len=128)
        assert rules.generated(100, 500) == 28
        assert rules.cuts(100, 500) == [(100, 68)]


def test_rules_notice_what_a_trace_should_not_say():
    rules = Rules(budget=64, block_size=32, max_model_len=512)
    good = [
        Cut("r", 0, "vtoken", length, tuple(victims), 32, 1, 0)
        for length, victims in rules.streaming_victims(100, 70)
    ]
    rules.check(good, 100, 70)
    rules.check(good[:2], 100, 70, finished=False)
    second = good[1]
    for bad in (
        good[:2],
        [good[0], good[2]],
        [good[0], replace(second, evicted=second.evicted[1:]), good[2]],
        [good[0], replace(second, evicted=(3, *second.evicted[1:])), good[2]],
        [good[0], replace(second, evicted=(4, *second.evicted[1:])), good[2]],
        [good[0], replace(second, evicted=(132, *second.evicted[1:])), good[2]],
        [good[0], replace(second, live=33), good[2]],
    ):
        with pytest.raises(AssertionError):
            rules.check(bad, 100, 70)


def test_lives_have_to_agree():
    first = [Cut("r", 0, "vtoken", n, (n - 50,), 32, 1, 0) for n in (100, 132)]
    second = [replace(cut, life=1) for cut in first]
    assert merge_lives(first[:1] + second) == second
    with pytest.raises(AssertionError, match="earlier one"):
        merge_lives([*first, replace(second[0], evicted=(51,))])
    with pytest.raises(AssertionError, match="was not cut at"):
        merge_lives([*first, second[1]])
    with pytest.raises(AssertionError, match="was cut at"):
        merge_lives([first[1], first[0]])
