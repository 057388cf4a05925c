import json

import pytest

from vtoken_sdk.bench.settings import RunSettings, parse_variants
from vtoken_sdk.errors import ConfigError


def test_the_defaults_are_a_valid_run():
    assert RunSettings().variants == ("native", "off", "naive", "vtoken")


def test_settings_survive_the_way_to_the_child():
    settings = RunSettings(policy_args={"recent": "3"}, variants=("native",), budget=64)
    sent = json.loads(json.dumps(settings.to_dict()))
    assert RunSettings(**sent).to_dict() == settings.to_dict()


@pytest.mark.parametrize(
    "name",
    [
        "budget", "max_tokens", "requests", "prefill_interval", "num_blocks", "block_size",
        "max_model_len", "max_num_batched_tokens", "max_num_seqs",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [0, -1])
def test_counts_below_one_are_refused_by_the_option_s_name(name, value):
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} must be at least 1"):
        RunSettings(**{name: value})


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match="--seed"):
        RunSettings(seed=-1)


@pytest.mark.parametrize(
    ("text", "names"),
    [("native", ("native",)), ("vtoken, off", ("vtoken", "off")), ("off,", ("off",)), (" ", ())],
)
def test_variants_are_split_at_commas(text, names):
    assert parse_variants(text) == names


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("nativ",), "unknown variant 'nativ'.*native, off, naive, vtoken"),
        (("off", "off"), "names one twice"),
        ((), "empty; choose from native, off, naive, vtoken"),
    ],
)
def test_wrong_variants_are_refused(names, message):
    with pytest.raises(ConfigError, match=message):
        RunSettings(variants=names)


def test_an_unknown_trigger_is_refused():
    with pytest.raises(ConfigError, match=r"unknown trigger 'presure'.*budget, pressure"):
        RunSettings(trigger="presure")


def test_under_pressure_there_are_no_eviction_points():
    with pytest.raises(ConfigError, match=r"--prefill-interval .* leave one out"):
        RunSettings(trigger="pressure", prefill_interval=64)


def test_triggers_are_those_of_the_engine():
    from vtoken_sdk.bench.settings import TRIGGERS
    from vtoken_sdk.config import When

    assert set(TRIGGERS) == {when.value for when in When}


def test_a_trace_needs_a_variant_that_evicts(tmp_path):
    with pytest.raises(ConfigError, match="add naive or vtoken"):
        RunSettings(variants=("native", "off"), trace=str(tmp_path / "cuts.jsonl"))


def test_a_trace_needs_a_folder_and_a_file_name(tmp_path):
    for path in (tmp_path, tmp_path / "missing" / "cuts.jsonl"):
        with pytest.raises(ConfigError, match="--trace must name a file"):
            RunSettings(trace=str(path))
