import pytest

from vtoken_sdk.bench import report


def figures(peak, outputs=("yes",)):
    return {
        "peak_blocks_per_request": peak,
        "utilisation": 0.98765,
        "max_running": 3,
        "preemptions": 2,
        "tokens_per_second": 41.26,
        "p95_latency_s": 1.234,
        "outputs": list(outputs),
    }


def result(**peaks):
    return {"variants": {name: figures(peak) for name, peak in peaks.items()}}


def test_a_row_per_variant_under_the_header():
    rows = report.table_rows({"native": figures(57), "vtoken": figures(15)})
    assert rows[0] == ["native", "57", "98.8%", "3", "2", "41.3", "1.23 s"]
    assert [row[0] for row in rows] == ["native", "vtoken"]
    assert all(len(row) == len(report.HEADER) for row in rows)


@pytest.mark.parametrize(
    ("peaks", "expected"),
    [
        (
            {"native": 57, "naive": 55, "vtoken": 15},
            (
                "vToken held at most 15 blocks per request where Native held 57 and "
                "Naive-Evict 55: 42 of 57 blocks came back."
            ),
        ),
        (
            {"native": 5, "vtoken": 1},
            "vToken held at most 1 block per request where Native held 5: 4 of 5 blocks came back.",
        ),
        (
            {"native": 5, "vtoken": 5},
            "vToken held at most 5 blocks per request where Native held 5: no blocks came back.",
        ),
        (
            {"native": 5, "naive": 6, "vtoken": 6},
            (
                "vToken held at most 6 blocks per request where Native held 5 and Naive-Evict 6: "
                "no blocks came back."
            ),
        ),
    ],
)
def test_the_sentence_says_what_was_measured(peaks, expected):
    assert report.sentence(result(**peaks)) == expected


@pytest.mark.parametrize("peaks", [{"native": 5}, {"vtoken": 5, "naive": 5}])
def test_without_both_variants_nothing_is_claimed(peaks):
    assert report.sentence(result(**peaks)).startswith("Run the variants native and vtoken")


def test_variants_that_agree_share_a_text():
    measured = {
        "settings": {
            "prompts": [{"name": "a.txt", "tokens": 7}, {"name": "b.txt", "tokens": 9}],
            "requests": 3,
        },
        "variants": {
            "native": figures(5, ["one", " two", "one"]),
            "naive": figures(5, ["uno", "two", "uno"]),
            "vtoken": figures(5, ["uno", "two", "uno"]),
        },
    }
    assert list(report.texts(measured)) == [
        ("a.txt (7 tokens)", {"native": "one", "naive, vtoken": "uno"}),
        ("b.txt (9 tokens)", {"native, naive, vtoken": "two"}),
    ]


def test_prompts_that_no_request_used_are_left_out():
    measured = {
        "settings": {
            "prompts": [{"name": "a", "tokens": 7}, {"name": "b", "tokens": 9}],
            "requests": 1,
        },
        "variants": {"native": figures(5)},
    }
    assert [title for title, _ in report.texts(measured)] == ["a (7 tokens)"]


def test_the_settings_are_told_in_one_line():
    settings = {
        "requests": 8, "num_blocks": 170, "block_size": 32, "policy": "random",
        "policy_args": {"recent": "0"}, "preset": "default", "budget": 256,
        "prefill_interval": None,
    }  # fmt: skip
    assert report.setting_line(settings) == (
        "8 requests at once, 170 blocks of 32 tokens, policy random recent=0, budget 256"
    )
    assert "policy random (paper) recent=0" in report.setting_line({**settings, "preset": "paper"})
    assert report.setting_line({**settings, "prefill_interval": 128}).endswith(
        "budget 256 (every 128 tokens of the prompt too)"
    )
