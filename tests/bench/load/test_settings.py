"""What the benches of a load refuse before anything starts, and what they choose."""

from __future__ import annotations

from pathlib import Path

import pytest

from vtoken_sdk.bench.load.capacity import CapacityBench, packed_ideal
from vtoken_sdk.bench.load.frontier import FrontierBench
from vtoken_sdk.bench.load.memory import MemoryBench
from vtoken_sdk.bench.load.prefix import PrefixBench
from vtoken_sdk.bench.load.settings import (
    Cell,
    LoadSettings,
    cells,
    model_of,
    parse_counts,
    parse_names,
    resolved,
)
from vtoken_sdk.errors import ConfigError, UsageError

TINY = LoadSettings(model="tiny", block_size=32, num_blocks=129)


def test_cells() -> None:
    names = [cell.name for cell in cells(LoadSettings(policies=("h2o", "random")))]
    assert names == ["native", "naive h2o", "naive random", "vtoken h2o", "vtoken random"]
    assert Cell("vtoken", "h2o", caching=True).name == "vtoken h2o + cache"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"variants": ("nativ",)}, "unknown variant 'nativ'"),
        ({"variants": ()}, "--variants is empty"),
        ({"policies": ()}, "--policies is empty"),
        ({"policies": ("h2o", "h2o")}, "names one twice"),
        ({"budget": 0}, "--budget must be at least 1"),
        ({"context": 1}, "--context must be at least 2"),
        ({"seed": -1}, "--seed must be 0 or more"),
        ({"dtype": "float8"}, "unknown --dtype 'float8'"),
    ],
)
def test_wrong_settings_are_refused(given, message) -> None:
    with pytest.raises(ConfigError, match=message):
        LoadSettings(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"policies": ("nope",)}, "no policy 'nope'"),
        ({"num_blocks": 32}, "need at least --num-blocks 33"),
        ({"budget": 40}, "use a budget of at least 52"),
        ({"prefill_interval": 33}, "not a multiple of the block size"),
    ],
)
def test_what_cannot_work_is_refused(given, message) -> None:
    with pytest.raises(UsageError, match=message):
        resolved(LoadSettings(model="tiny", block_size=32, **given), pool_requests=4)


def test_policies_matter_only_to_variants_that_evict() -> None:
    load = LoadSettings(model="tiny", variants=("native", "off"), policies=("nope",), block_size=32)
    assert resolved(load, pool_requests=4).num_blocks == 4 * 32 + 1


def test_the_tiny_model_is_made_elsewhere_and_a_missing_one_is_refused(tmp_path) -> None:
    assert model_of(TINY) == "tiny"
    with pytest.raises(ConfigError, match="does not exist"):
        model_of(LoadSettings(model=str(tmp_path / "none")))


def test_a_context_the_model_was_not_made_for_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512}')
    with pytest.raises(ConfigError, match="use 512 or less"):
        model_of(LoadSettings(model=str(tmp_path), context=513))


def test_result_files_name_no_folder_of_the_machine(tmp_path) -> None:
    assert LoadSettings(model=str(tmp_path / "my-model")).to_dict()["model"] == "my-model"
    assert LoadSettings().to_dict()["model"] == "SmolLM2-135M-Instruct"


def test_lists() -> None:
    assert parse_names(" h2o, random,") == ("h2o", "random")
    assert parse_counts("--degrees", "8,1, 2") == (1, 2, 8)
    for wrong in ("", "x", "1,1", "0,2"):
        with pytest.raises(ConfigError, match="--degrees must be"):
            parse_counts("--degrees", wrong)


def test_packed_ideal() -> None:
    # 128 blocks of 32: 4 whole contexts of 1,024, or 32 budgets of 128.
    assert packed_ideal(TINY, Cell("native")) == 4
    assert packed_ideal(TINY, Cell("vtoken", "h2o")) == 32
    short = LoadSettings(
        model="tiny", block_size=32, num_blocks=129, workload="synthetic:prompt=40,output=24"
    )
    assert packed_ideal(short, Cell("vtoken", "h2o")) == 64  # shorter than the budget


def test_benches_refuse_what_makes_no_sense() -> None:
    with pytest.raises(ConfigError, match="none of the --concurrency levels"):
        FrontierBench(TINY, levels=(2, 4))
    with pytest.raises(ConfigError, match="cannot keep 32 in flight"):
        FrontierBench(TINY, levels=(8, 32), requests=16)
    with pytest.raises(ConfigError, match="cannot keep 9 in flight"):
        MemoryBench(TINY, concurrency=9)
    with pytest.raises(ConfigError, match="has no prefix cache"):
        PrefixBench(TINY)
    ours = LoadSettings(model="tiny", variants=("vtoken",), block_size=32, num_blocks=129)
    for given, message in (
        ({"shared": 100}, "must be a multiple of 32"),
        ({"shared": 768}, "shorter than the prompts"),
        ({"requests": 12}, "whole groups of 8"),
        ({"rounds": 0}, "--rounds must be at least 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            PrefixBench(ours, **given)


def test_jobs_carry_json() -> None:
    import json

    for bench in (CapacityBench(TINY), FrontierBench(TINY), MemoryBench(TINY)):
        (job,) = bench.jobs()
        assert json.loads(json.dumps(job)) == job
        assert job["job"] == bench.name
        json.dumps(bench.to_dict())
