"""Several engines behind one server: which of them answers makes no difference."""

from __future__ import annotations

import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.vllm.check import assert_exact, judge
from tests.vllm.lab import BLOCK, Engine, random_requests
from tests.vllm.served import add_tokenizer, serving
from tests.vllm.test_serve import question
from vtoken_sdk.testing.tiny_model import make_tiny_model

openai = pytest.importorskip("openai")

REQUESTS = random_requests("w", (300, 40, 97, 200, 150, 64), 80)
ENGINES = {"alone": lambda: Engine(max_model_len=512, workloads={"w": REQUESTS})}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    options = [
        "--policy", "random", "--budget", "64", "--block-size", str(BLOCK), "--dtype", "float32",
        "--max-model-len", "512", "--num-gpu-blocks-override", "64", "--enforce-eager",
        "--served-model-name", "tiny", "--data-parallel-size", "2",
    ]  # fmt: skip
    model = add_tokenizer(make_tiny_model(tmp_path_factory.mktemp("served")))
    with serving(model, tmp_path_factory.mktemp("server"), *options) as server:
        yield server


def test_tokens_are_those_of_one_engine(server, run, models, record):
    alone = run("alone")["w"]
    record(judged := judge(models.reference("tiny"), ENGINES["alone"](), REQUESTS, alone))
    assert_exact(judged)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

        def ask(request):
            answer = client.completions.create(**question(request))
            return list(answer.choices[0].token_ids)

        with ThreadPoolExecutor(len(REQUESTS)) as pool:
            answers = list(pool.map(ask, REQUESTS))
    assert answers == [alone.outputs[request.id] for request in REQUESTS]
    after = server.wait_until_idle()
    evicted = sum(len(cut.evicted) for cuts in alone.cuts.values() for cut in cuts)
    assert after["vtoken_evicted_tokens_total"] == evicted


def test_both_engines_answered(server):
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as page:
        text = page.read().decode()
    line = r'^vllm:generation_tokens_total\{.*engine="(\d)".*\} (.*)$'
    counts = re.findall(line, text, re.MULTILINE)
    assert {engine for engine, count in counts if float(count)} == {"0", "1"}
