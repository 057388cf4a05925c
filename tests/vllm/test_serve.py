"""``vtoken serve`` over HTTP, asked by the real ``openai`` client."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.eviction_rules import load_trace, merge_lives
from tests.vllm.lab import random_requests
from tests.vllm.served import Server, add_tokenizer, serving
from vtoken_sdk.testing.oracle import LOGPROB_TOLERANCE
from vtoken_sdk.testing.tiny_model import make_tiny_model

openai = pytest.importorskip("openai")

BUDGET, BLOCK, BLOCKS = 96, 32, 64
LENGTHS = (300, 40, 64, 97, 128, 200, 20, 31, 32, 33, 1, 150)
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_tokenizer(make_tiny_model(tmp_path_factory.mktemp("served")))


@pytest.fixture(scope="module")
def reference(model):
    from vtoken_sdk.testing.oracle import Reference

    return Reference(model)


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("trace") / "cuts.jsonl"


@pytest.fixture(scope="module")
def server(model, trace, tmp_path_factory):
    options = [
        "--policy", "random", "--budget", str(BUDGET), "--block-size", str(BLOCK),
        "--policy-arg", "recent=16", "--max-model-len", "512", "--dtype", "float32",
        "--num-gpu-blocks-override", str(BLOCKS), "--enforce-eager", "--trace", str(trace),
        "--served-model-name", "tiny", "--chat-template", TEMPLATE,
    ]  # fmt: skip
    with serving(model, tmp_path_factory.mktemp("server"), *options) as server:
        yield server


@pytest.fixture
def client(server: Server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def question(request, **arguments):
    return {
        "model": "tiny",
        "prompt": list(request.prompt),
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "extra_headers": {"X-Request-Id": request.id},
        "extra_body": {
            "ignore_eos": True, "return_token_ids": True, "vllm_xargs": arguments or None,
        },
    }  # fmt: skip


def cuts_of(trace: Path, request) -> list:
    return load_trace(trace).get(f"cmpl-{request.id}-0", [])


def is_exact(reference, trace, request, tokens, **options) -> bool:
    cuts = merge_lives(cuts_of(trace, request))
    verdict = reference.judge(request.prompt, tokens, cuts, **options)
    assert verdict.compared == len(tokens) == request.max_tokens
    return verdict.exact


def test_an_answer_is_exact(client, reference, trace):
    (request,) = random_requests("plain", (300,), 100)
    answer = client.completions.create(**question(request))
    assert answer.choices[0].finish_reason == "length"
    assert cuts_of(trace, request)
    assert is_exact(reference, trace, request, answer.choices[0].token_ids)


def test_a_streamed_answer_is_the_same(client, reference, trace):
    plain, streamed = (random_requests(tag, (200,), 100)[0] for tag in ("whole", "streamed"))
    whole = client.completions.create(**question(plain)).choices[0]
    tokens, text = [], ""
    for part in client.completions.create(**question(streamed), stream=True):
        tokens += part.choices[0].token_ids or []
        text += part.choices[0].text
    assert tokens == whole.token_ids
    assert text == whole.text
    assert is_exact(reference, trace, streamed, tokens)


def test_many_at_once(server, reference, trace):
    requests = random_requests("many", LENGTHS * 2, 90)

    async def ask_all():
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0
        ) as client:
            return await asyncio.gather(
                *(client.completions.create(**question(request)) for request in requests)
            )

    answers = asyncio.run(ask_all())
    for request, answer in zip(requests, answers, strict=True):
        assert is_exact(reference, trace, request, answer.choices[0].token_ids), request.id
    server.wait_until_idle()


def test_a_chat(client):
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "w17 w18 w19"}], max_tokens=5
    )
    assert answer.usage.prompt_tokens == 3


def test_several_samples_of_one_prompt(client, reference, trace):
    """They are drawn, so it is their log probabilities that have to be the reference's."""
    (request,) = random_requests("samples", (300,), 60)
    asked = question(request) | {"n": 2, "temperature": 1.0, "seed": 7, "logprobs": 0}
    choices = client.completions.create(**asked).choices
    assert choices[0].token_ids != choices[1].token_ids
    for number, choice in enumerate(choices):
        cuts = merge_lives(load_trace(trace)[f"{number}_cmpl-{request.id}-0"])
        assert cuts
        verdict = reference.judge(
            request.prompt, choice.token_ids, cuts, logprobs=choice.logprobs.token_logprobs
        )
        assert verdict.error <= LOGPROB_TOLERANCE


def test_log_probabilities_of_the_prompt(client, reference):
    """It is cut after it was read, so they are those of full attention."""
    (request,) = random_requests("prompt-logprobs", (300,), 5)
    asked = question(request)
    asked["extra_body"]["prompt_logprobs"] = 0
    first, *told = client.completions.create(**asked).choices[0].prompt_logprobs
    assert first is None
    logits = reference.logits(request.prompt[:1], request.prompt[1:])
    expected = logits.log_softmax(-1)
    for row, token, each in zip(expected, request.prompt[1:], told, strict=True):
        assert abs(each[str(token)]["logprob"] - float(row[token])) <= LOGPROB_TOLERANCE


def test_structured_output(client, reference, trace):
    """Among what the grammar allows, the token that the reference prefers."""
    (request,) = random_requests("structured", (300,), 1)
    asked = question(request)
    allowed = [f"w{token}" for token in range(17, 57)]
    asked["extra_body"] |= {"structured_outputs": {"choice": allowed}}
    (token,) = client.completions.create(**asked).choices[0].token_ids
    (logits,) = reference.logits(request.prompt, [token], merge_lives(cuts_of(trace, request)))
    assert token == 17 + int(logits[17:57].argmax())


def test_a_request_may_have_its_own_budget(client, reference, trace):
    (request,) = random_requests("roomy", (300,), 100)
    answer = client.completions.create(**question(request, vtoken_budget=192))
    cuts = cuts_of(trace, request)
    assert cuts
    assert {cut.live for cut in cuts} == {192 - BLOCK}
    assert is_exact(reference, trace, request, answer.choices[0].token_ids)


def test_a_request_may_opt_out(client, reference, trace):
    (request,) = random_requests("whole-cache", (300,), 100)
    answer = client.completions.create(**question(request, vtoken_policy="none"))
    assert not cuts_of(trace, request)
    assert is_exact(reference, trace, request, answer.choices[0].token_ids, full=False)


def test_a_request_may_name_the_policy_that_is_served(client, trace):
    (request,) = random_requests("named", (300,), 40)
    client.completions.create(**question(request, vtoken_policy="random"))
    assert {cut.live for cut in cuts_of(trace, request)} == {BUDGET - BLOCK}


BAD = {
    "a policy that is not served": ({"vtoken_policy": "h2o"}, "it is 'random', or 'none'"),
    "a budget that is too small": ({"vtoken_budget": 40}, "at least 52"),
    "a budget of 0": ({"vtoken_budget": 0}, "at least 52"),
    "a budget in words": ({"vtoken_budget": "128"}, "must be a whole number, got '128'"),
    "a fraction": ({"vtoken_budget": 128.5}, "must be a whole number, got 128.5"),
    "a truth value": ({"vtoken_budget": True}, "must be a whole number, got True"),
    "a list": ({"vtoken_budget": [128]}, "must be a whole number"),
    "both": ({"vtoken_policy": "none", "vtoken_budget": 128}, "leave one out"),
    "an unknown argument": ({"vtoken_bugdet": 128}, "unknown argument vtoken_bugdet"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("case", BAD)
def test_wrong_arguments_are_refused_with_400(case, stream, client):
    arguments, message = BAD[case]
    (request,) = random_requests("bad", (40,), 5)
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**question(request, **arguments), stream=stream)
    assert refused.value.status_code == 400
    assert message in str(refused.value)


def test_wrong_arguments_of_a_chat_are_refused_too(client):
    with pytest.raises(openai.BadRequestError, match="at least 52"):
        client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "w17 naïve"}],
            extra_body={"vllm_xargs": {"vtoken_budget": 1}},
        )


def test_vllm_refuses_what_is_wrong_otherwise(client):
    (request,) = random_requests("long", (600,), 5)
    with pytest.raises(openai.BadRequestError, match="512"):
        client.completions.create(**question(request))


def test_cancelled_mid_stream_gives_every_block_back(client, server):
    before = server.wait_until_idle()
    requests = random_requests("cancelled", [20] * 8, 490)
    streams = [client.completions.create(**question(r), stream=True) for r in requests]
    for stream in streams:
        for _ in range(5):
            next(stream)
    server.wait_until(lambda found: found["vtoken_allocated_blocks"] > 0)
    for stream in streams:
        stream.close()
    after = server.wait_until_idle()
    assert after["vllm:kv_cache_usage_perc"] == 0
    generated = after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
    assert generated < 8 * 490, "they had ended before they were cancelled"


def test_the_page_of_metrics_has_ours_and_vllms(client, server, trace):
    (request,) = random_requests("counted", (300,), 60)
    client.completions.create(**question(request))
    found = server.wait_until_idle()
    cuts = [cut for cuts in load_trace(trace).values() for cut in cuts]
    assert found["vtoken_cuts_total"] == len(cuts)
    assert found["vtoken_evicted_tokens_total"] == sum(len(cut.evicted) for cut in cuts)
    assert found["vtoken_freed_blocks_total"] == sum(cut.freed_blocks for cut in cuts)
    assert found["vtoken_live_tokens"] == 0
    assert found["vllm:generation_tokens_total"] > 60
    assert found["vllm:request_success_total"] > 0


def test_where_prompts_are_cut_and_that_it_ends_when_told_to(model, tmp_path):
    (request,) = random_requests("cut-early", (200,), 5)
    with serving(
        model, tmp_path, "--policy", "streaming-llm", "--budget", "96", "--max-model-len", "256",
        "--num-gpu-blocks-override", "20", "--enforce-eager", "--dtype", "float32",
        "--prefill-interval", "64", "--served-model-name", "tiny",
    ) as server:  # fmt: skip
        assert server.metrics()["vtoken_cuts_total"] == 0
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            asked = question(request)
            client.completions.create(**asked)
            asked["extra_body"]["prompt_logprobs"] = 0
            with pytest.raises(openai.BadRequestError, match="leave prompt_logprobs out"):
                client.completions.create(**asked)
        assert server.wait_until_idle()["vtoken_cuts_total"] > 1
        server.stop()
    # vLLM's API process may log that the engine it waits for has gone; none of our code may fail.
    assert not re.search(r"File \".*/vtoken_sdk/", server.log.read_text())
