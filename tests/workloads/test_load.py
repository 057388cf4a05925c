"""Every format is read, and what is malformed is named by line and field."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.workloads import load_workload
from vtoken_sdk.workloads.samples import DATA, NAMED

WHOLE_DATA = os.environ.get("VTOKEN_DATA", "")
MOONCAKE = {"timestamp": 1500, "input_length": 1000, "output_length": 5, "hash_ids": [7, 8]}


@pytest.fixture(autouse=True)
def samples_only(monkeypatch):
    monkeypatch.delenv("VTOKEN_DATA", raising=False)


@pytest.fixture
def write(tmp_path):
    def write(name: str, *rows: dict | str) -> Path:
        path = tmp_path / name
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("name", NAMED)
def test_samples_come_with_the_package(name):
    workload = load_workload(name)
    assert len(workload.requests) >= 6
    assert "sample" in workload.source
    assert workload.requests[0].arrival_s == 0
    arrivals = [request.arrival_s for request in workload.requests]
    assert arrivals == sorted(arrivals)
    for request in workload.requests:
        assert request.prompt_tokens >= 1
        assert request.output_tokens >= 1
        if workload.prefix_chunk:
            assert len(request.prefix_ids) == -(-request.prompt_tokens // workload.prefix_chunk)


def test_the_licences_of_the_samples_are_there():
    told = (DATA / "SOURCES.md").read_text(encoding="utf-8")
    for name in NAMED.values():
        assert f"`{name.sample}`" in told
        assert f"`{name.full}`" in told
    size = sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file())
    assert size < 250_000, "samples are to be small"


def test_a_mooncake_trace(write):
    late = MOONCAKE | {"timestamp": 2750, "hash_ids": [7, 9]}
    workload = load_workload(write("a.jsonl", MOONCAKE, late))
    first, second = workload.requests
    assert (first.arrival_s, second.arrival_s) == (0.0, 1.25)
    assert (first.prompt_tokens, first.output_tokens, first.prefix_ids) == (1000, 5, (7, 8))
    assert workload.prefix_chunk == 512


def test_an_azure_trace(write):
    path = write(
        "a.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 23:59:59.5000000,374,44",
        "2023-11-17 00:00:01.0000000,20,3",
    )
    first, second = load_workload(path).requests
    assert (first.prompt_tokens, first.output_tokens) == (374, 44)
    assert second.arrival_s == pytest.approx(1.5)


def test_own_requests_in_any_order(write):
    path = write(
        "own.jsonl",
        {"prompt_tokens": 30, "output_tokens": 2, "arrival_s": 4},
        {"prompt": "Once upon a time", "output_tokens": 3},
    )
    first, second = load_workload(path).requests
    assert (first.text, first.prompt_tokens, first.output_tokens) == ("Once upon a time", 4, 3)
    assert (second.prompt_tokens, second.arrival_s) == (30, 4)


def test_turns_of_a_chat_begin_with_the_turns_before():
    first, second, *_ = load_workload("chat").requests
    assert second.text.startswith(first.text)
    shared = len(first.text) // 64
    assert second.prefix_ids[:shared] == first.prefix_ids[:shared]
    assert set(second.prefix_ids[shared + 1 :]).isdisjoint(first.prefix_ids)


def test_queries_about_a_meeting_share_its_transcript():
    first, second, *_ = load_workload("qmsum").requests
    assert first.text != second.text
    assert len(set(first.prefix_ids) & set(second.prefix_ids)) > 100


BAD = {
    "no JSON": ("a.jsonl", [MOONCAKE, "{"], "line 2: no JSON"),
    "no object": ("a.jsonl", [MOONCAKE, "[1]"], "line 2: must be a JSON object"),
    "missing": (
        "a.jsonl",
        [MOONCAKE, {"timestamp": 1, "hash_ids": [1]}],
        "line 2, field 'input_length': is missing",
    ),
    "not a number": (
        "a.jsonl",
        [MOONCAKE | {"timestamp": "x"}],
        "line 1, field 'timestamp': must be a number",
    ),
    "true": (
        "a.jsonl",
        [MOONCAKE | {"input_length": True}],
        "field 'input_length': must be a number",
    ),
    "nan": (
        "a.jsonl",
        [MOONCAKE | {"timestamp": float("nan")}],
        "field 'timestamp': must be a number",
    ),
    "infinite": (
        "a.jsonl",
        [MOONCAKE | {"timestamp": float("inf")}],
        "field 'timestamp': must be a number",
    ),
    "zero": (
        "a.jsonl",
        [MOONCAKE | {"output_length": 0}],
        "'output_length': must be a whole number of at least 1, got 0",
    ),
    "fraction": (
        "a.jsonl",
        [MOONCAKE | {"input_length": 9.5}],
        "'input_length': must be a whole number",
    ),
    "hash ids": (
        "a.jsonl",
        [MOONCAKE | {"hash_ids": [1]}],
        "line 1, field 'hash_ids': must be 2 whole numbers",
    ),
    "unknown fields": (
        "a.jsonl",
        [{"length": 3}],
        "line 1: the fields length are of no known format",
    ),
    "empty": ("a.jsonl", [""], "has no records"),
    "header only": ("a.csv", ["TIMESTAMP,ContextTokens,GeneratedTokens"], "has no records"),
    "ending": ("a.txt", ["x"], "the name must end in .csv or .jsonl"),
    "time": (
        "a.csv",
        ["TIMESTAMP,ContextTokens,GeneratedTokens", "noon,1,1"],
        "line 2, field 'TIMESTAMP': must be like 2023",
    ),
    "short row": (
        "a.csv",
        ["num_prefill_tokens,num_decode_tokens", "4"],
        "line 2, field 'num_decode_tokens': is missing",
    ),
    "long row": (
        "a.csv",
        ["num_prefill_tokens,num_decode_tokens", "4,5,6"],
        "line 2, field 'num_decode_tokens'",
    ),
    "own": (
        "a.jsonl",
        [{"output_tokens": 4}],
        "field 'prompt': is missing, and so is 'prompt_tokens'",
    ),
    "own arrival": (
        "a.jsonl",
        [{"prompt": "x", "output_tokens": 4, "arrival_s": -1}],
        "'arrival_s': must be at least 0",
    ),
    "huge number": (
        "a.jsonl",
        ['{"output_tokens": 4, "prompt_tokens": 1' + 400 * "0" + "}"],
        "line 1, field 'prompt_tokens': is too large a number",
    ),
    "nested": (
        "a.jsonl",
        [{"output_tokens": 4, "prompt": "x"}, 100_000 * "["],
        "line 2: is nested too deeply",
    ),
    "huge cell": (
        "a.csv",
        ["num_prefill_tokens,num_decode_tokens", f"4,{200_000 * '1'}"],
        "line 2: no CSV: field larger than field limit",
    ),
    "own empty": ("a.jsonl", [{"prompt": " ", "output_tokens": 4}], "'prompt': must be a text"),
    "chat": ("a.jsonl", [{"conversation": ["hello"]}], "'conversation[0]': must be an object"),
    "no turns": ("a.jsonl", [{"turns": []}], "'turns': must be a list that is not empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_malformed_files_are_told_by_line_and_field(case, write):
    name, rows, told = BAD[case]
    with pytest.raises(ConfigError) as error:
        load_workload(write(name, *rows))
    assert told in str(error.value)


@pytest.mark.parametrize("good", [0, 3_000])
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a.jsonl", b'{"prompt_tokens": 9, "output_tokens": 4}\n'),
        ("a.csv", b"num_prefill_tokens,num_decode_tokens\n"),
    ],
)
def test_bytes_that_are_no_text(name, line, good, tmp_path):
    lines = line + b"4,4\n" * (good - 1) if name == "a.csv" and good else line * good
    (tmp_path / name).write_bytes(lines + b"\xff\xfe{")
    with pytest.raises(ConfigError, match=f"a.*, line {good + 1}: is no UTF-8 text"):
        load_workload(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"prompt_tokens": 9, "output_tokens": 4}'),
        ("a.csv", "num_prefill_tokens,num_decode_tokens\r\n9,4\r\n"),
    ],
)
def test_a_byte_order_mark_is_no_part_of_a_file(name, text, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8-sig", newline="")
    (request,) = load_workload(tmp_path / name).requests
    assert (request.prompt_tokens, request.output_tokens) == (9, 4)


def test_an_unknown_name_lists_those_known():
    with pytest.raises(ConfigError, match=r"no workload moncake: .* mooncake, azure"):
        load_workload("moncake")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"limit": 0}, "limit"),
        ({"scale": 0}, "scale"),
        ({"rate": 0}, "rate"),
        ({"rate": -1}, "rate"),
    ],
)
def test_settings_out_of_range(settings, told):
    with pytest.raises(ConfigError, match=f"{told} must be"):
        load_workload("azure", **settings)


def test_recipes_are_drawn_the_same_again():
    spec = "synthetic:prompt=100-200,output=3,requests=20,rate=4"
    workload = load_workload(spec, seed=3)
    assert workload == load_workload(spec, seed=3)
    assert workload != load_workload(spec, seed=4)
    lengths = {request.prompt_tokens for request in workload.requests}
    assert lengths <= set(range(100, 201))
    assert len(lengths) > 10
    assert len(workload.requests) == 20
    assert 1 < workload.requests[-1].arrival_s < 20


def test_a_recipe_with_a_shared_beginning():
    workload = load_workload("synthetic:prompt=100-200,output=3,requests=9,shared=50")
    own = [set(request.prefix_ids[1:]) for request in workload.requests]
    assert all(request.prefix_ids[0] == 0 for request in workload.requests)
    assert sum(map(len, own)) == len(set().union(*own))


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ("prompt=5", "does not say output="),
        ("prompt=5,output=x", "output=x must be a whole number"),
        ("prompt=9-5,output=1", "LOW <= HIGH"),
        ("prompt=5,output=1,colour=2", "no part of a synthetic workload"),
        ("prompt=5,output=1,rate=-2", "rate=-2 must be"),
        ("prompt=5,output=1,requests=0", "requests=0 must be"),
        ("prompt=5,output=1,shared=6", "longer than the shortest prompt"),
    ],
)
def test_wrong_recipes(recipe, told):
    with pytest.raises(ConfigError, match=told):
        load_workload(f"synthetic:{recipe}")


def test_scale_shrinks_lengths_and_keeps_what_is_shared():
    whole, small = load_workload("mooncake"), load_workload("mooncake", scale=1 / 32)
    assert small.prefix_chunk == 16
    for a, b in zip(whole.requests, small.requests, strict=True):
        assert b.prompt_tokens == pytest.approx(a.prompt_tokens / 32, abs=1)
        assert b.prefix_ids == a.prefix_ids[: len(b.prefix_ids)]


def test_texts_lose_their_middle():
    whole, small = load_workload("qmsum").requests[0], load_workload("qmsum", scale=0.1).requests[0]
    assert small.text[:500] == whole.text[:500]
    assert small.text[-200:] == whole.text[-200:]
    assert len(small.text) == pytest.approx(len(whole.text) / 10, abs=1)


def test_whole_files_come_from_the_folder_of_the_user(write, monkeypatch):
    folder = write("x.jsonl").parent
    (folder / "mooncake").mkdir()
    write("mooncake/conversation_trace.jsonl", MOONCAKE)
    monkeypatch.setenv("VTOKEN_DATA", str(folder))
    assert len(load_workload("mooncake").requests) == 1
    assert len(load_workload("azure").requests) == 400
    monkeypatch.setenv("VTOKEN_DATA", str(folder / "nowhere"))
    with pytest.raises(ConfigError, match="VTOKEN_DATA must name a folder"):
        load_workload("mooncake")


WHOLE = {"mooncake": 12_031, "azure": 19_366, "sharegpt": 30_731}


@pytest.mark.skipif(not WHOLE_DATA, reason="VTOKEN_DATA names no folder with whole data sets")
@pytest.mark.parametrize("name", NAMED)
def test_whole_files_can_be_read(name, monkeypatch):
    monkeypatch.setenv("VTOKEN_DATA", WHOLE_DATA)
    workload = load_workload(name)
    assert "sample" not in workload.source
    assert len(workload.requests) == WHOLE.get(name, len(workload.requests))
