"""Faults while ``vtoken serve`` and ``vtoken run`` work: a defined end, a message, and no hang."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.vllm import wrong_policies
from tests.vllm.lab import random_requests
from tests.vllm.served import ENVIRONMENT, Server, add_tokenizer, serving
from vtoken_sdk.testing.tiny_model import make_tiny_model

openai = pytest.importorskip("openai")

BUDGET, BLOCK, BLOCKS = 96, 32, 17
LONGEST = (BLOCKS - 1) * BLOCK
LIMIT_SECONDS = 60
RAISES = f"{wrong_policies.__file__}:Raises"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_tokenizer(make_tiny_model(tmp_path_factory.mktemp("served")))


def options(policy: str = "random", *more: str) -> list[str]:
    return [
        "--policy", policy, "--budget", str(BUDGET), "--block-size", str(BLOCK),
        "--max-model-len", str(LONGEST), "--num-gpu-blocks-override", str(BLOCKS),
        "--enforce-eager", "--dtype", "float32", "--served-model-name", "tiny", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def server(model, tmp_path_factory) -> Iterator[Server]:
    """One whose policy fails: that alone disturbs nobody."""
    with serving(model, tmp_path_factory.mktemp("server"), *options(RAISES)) as server:
        yield server


def question(request, **fields):
    return {
        "model": "tiny", "prompt": list(request.prompt), "max_tokens": request.max_tokens,
        "temperature": 0, "timeout": LIMIT_SECONDS,
        "extra_body": {"ignore_eos": True, "return_token_ids": True, **fields},
    }  # fmt: skip


@contextmanager
def asking(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask_all(server: Server, questions: list[dict]) -> list:
    """Answers or errors, each within the limit."""

    async def ask_all() -> list:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0
        ) as client:

            async def ask(question: dict):
                if not question.get("stream"):
                    return await client.completions.create(**question)
                stream = await client.completions.create(**question)
                return [part async for part in stream]

            calls = (asyncio.wait_for(ask(q), 2 * LIMIT_SECONDS) for q in questions)
            return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(ask_all())


# -- a policy that raises ---------------------------------------------------------------------


def test_a_policy_that_raises_is_overruled_and_counted(server):
    questions = [question(r) for r in random_requests("raised", (300, 200, 150, 97), 60)]
    for answer in ask_all(server, questions):
        assert len(answer.choices[0].token_ids) == 60
    found = server.wait_until_idle()
    assert found["vtoken_policy_fallbacks_total"] == found["vtoken_cuts_total"] - 2 > 0
    log = server.log.read_text()
    assert log.count("policy 'raises': it raised RuntimeError('no idea what to keep')") == 1
    assert "the oldest evictable tokens leave instead" in log


def test_strict_the_server_stops_and_its_last_line_names_the_policy(model, tmp_path):
    with serving(model, tmp_path, *options(RAISES, "--strict")) as server:
        questions = [question(r) for r in random_requests("strict", (300, 200, 150, 97), 60)]
        questions[1]["stream"] = True
        assert all(isinstance(answer, openai.APIError) for answer in ask_all(server, questions))
        assert server.process.wait(LIMIT_SECONDS) == 1
        assert last_error(server).startswith(
            "Error: the engine has ended, and the server with it: policy 'raises': it raised "
            "RuntimeError('no idea what to keep') (request "
        )


def last_error(server: Server) -> str:
    """What the command said; behind it come notes of libraries on what they leak."""
    *_, line = re.findall(r"^Error: .*$", server.log.read_text(), re.MULTILINE)
    return line


# -- processes that are killed ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "logged"),
    [
        ("VLLM::Worker", r"Worker proc \S+ died unexpectedly \(exit code: -9\)"),
        ("VLLM::EngineCore", r"[Ee]ngine core.*(died|exited) unexpectedly"),
    ],
    ids=["worker", "core"],
)
def test_a_killed_process_ends_the_server_and_no_client_hangs(name, logged, model, tmp_path):
    with serving(model, tmp_path, *options()) as server:
        processes = psutil.Process(server.process.pid).children(recursive=True)
        (victim,) = [process for process in processes if process.name() == name]
        requests = random_requests("killed", [20] * 6, LONGEST - 20)
        questions = [question(r) | {"stream": i % 2 == 0} for i, r in enumerate(requests)]

        async def ask_and_kill() -> list:
            asked = asyncio.to_thread(ask_all, server, questions)
            killed = asyncio.to_thread(kill_once_it_generates, server, victim)
            answers, _ = await asyncio.gather(asked, killed)
            return answers

        answers = asyncio.run(ask_and_kill())
        assert all(isinstance(answer, openai.APIError) for answer in answers), answers
        assert server.process.wait(LIMIT_SECONDS) == 1
        assert "the engine has ended, and the server with it" in last_error(server)
        assert re.search(logged, server.log.read_text())
        _, left = psutil.wait_procs(processes, timeout=30)
        assert not left


def kill_once_it_generates(server: Server, victim: psutil.Process) -> None:
    server.wait_until(waits_or_runs)
    victim.kill()


def test_a_killed_engine_of_vtoken_run(model, tmp_path):
    words = " ".join(f"w{i}" for i in range(10, 80))
    command = [
        sys.executable, str(ROOT / "cli.py"), "run", "--model", str(model), "--prompt", words,
        "--max-tokens", "8000", "--ignore-eos", "--variants", "vtoken", "--budget", "96",
    ]  # fmt: skip
    with subprocess.Popen(
        command, cwd=tmp_path, env=os.environ | ENVIRONMENT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith("vtoken: generating"))
        children = psutil.Process(process.pid).children(recursive=True)
        for child in children:
            child.send_signal(signal.SIGKILL)
        out, error = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, out) == (1, "")
    message, log = error.strip().splitlines()[-2:]
    assert message == (
        "Error: vtoken failed: the engine process was ended by SIGKILL (out of memory?)"
    )
    Path(log.removeprefix("The full log is ")).unlink()


# -- memory that is short ---------------------------------------------------------------------


def test_requests_that_opt_out_and_fill_the_pool_take_turns(server):
    """Each takes all of it in the end: they are preempted, and all of them finish."""
    before = server.metrics()["vllm:num_preemptions_total"]
    requests = random_requests("whole", [20, 33, 60, 100, 20, 64], 380)
    opted = [question(r, vllm_xargs={"vtoken_policy": "none"}) for r in requests]
    small = [question(r) for r in random_requests("small", [40, 200, 20, 97], 60)]
    answers = ask_all(server, [*opted, *small])
    generated = [len(answer.choices[0].token_ids) for answer in answers]
    assert generated == [380] * 6 + [60] * 4
    assert server.wait_until_idle()["vllm:num_preemptions_total"] > before


def test_one_request_may_take_every_block(server):
    (request,) = random_requests("all", [LONGEST - 30], 30)
    with asking(server) as client:
        asked = question(request, vllm_xargs={"vtoken_policy": "none"})
        (choice,) = client.completions.create(**asked).choices
    assert len(choice.token_ids) == 30
    server.wait_until_idle()


def test_a_request_larger_than_the_pool_is_refused(server):
    (request,) = random_requests("larger", [LONGEST + 30], 30)
    with asking(server) as client, pytest.raises(openai.BadRequestError, match=str(LONGEST)):
        client.completions.create(**question(request))


# -- clients that go away ---------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [0, 3], ids=["before the first token", "mid-stream"])
@pytest.mark.parametrize("opted_out", [False, True], ids=["evicted", "whole"])
def test_many_clients_go_away_at_once(tokens, opted_out, server):
    server.wait_until_idle()
    requests = random_requests("gone", [20, 300, 97, 40] * 6, 200)
    xargs = {"vtoken_policy": "none"} if opted_out else None
    asyncio.run(leave_after(server, [question(r, vllm_xargs=xargs) for r in requests], tokens))
    found = server.wait_until_idle()
    assert found["vllm:kv_cache_usage_perc"] == 0
    (request,) = random_requests("next", (40,), 5)
    with asking(server) as client:
        (choice,) = client.completions.create(**question(request)).choices
    assert len(choice.token_ids) == 5


async def leave_after(server: Server, questions: list[dict], tokens: int) -> None:
    """Hang up on all of them: once so many tokens have come, or before the first one has."""
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0
    ) as client:

        async def ask(question: dict) -> None:
            stream = await client.completions.create(**question, stream=True)
            seen = 0
            async for _ in stream:
                seen += 1
                if tokens and seen >= tokens:
                    await stream.close()
                    return

        asked = [asyncio.create_task(ask(question)) for question in questions]
        if not tokens:
            await asyncio.to_thread(server.wait_until, waits_or_runs)
            for task in asked:
                task.cancel()
        done = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), LIMIT_SECONDS)
    assert all(end is None or isinstance(end, asyncio.CancelledError) for end in done), done


def waits_or_runs(found: dict[str, float]) -> bool:
    """A server that was never asked anything has no such figures."""
    return any(found.get(f"vllm:num_requests_{state}") for state in ("running", "waiting"))


def test_the_server_is_still_well_and_nothing_of_ours_failed(server):
    server.wait_until_idle()
    assert server.stop() == 0
    log = server.log.read_text()
    assert not re.search(r'File ".*/vtoken_sdk/', log)
    assert not re.search(r"^Error: ", log, re.MULTILINE)
