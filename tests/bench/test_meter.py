import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtoken_sdk.bench.meter import Meter, percentile
from vtoken_sdk.vllm.observe import StepSample


def test_a_meter_adds_up_what_each_step_shows():
    meter = Meter(block_size=4)
    meter.add(StepSample(held={"a": 3}, live={"a": 9}))
    meter.add(StepSample(held={"a": 2, "b": 1}, live={"a": 5, "b": 2}, preempted=1))
    meter.add(StepSample(held={"b": 1}, live={"b": 3}))
    assert meter.figures() == {
        "peak_blocks_per_request": 3,
        "peak_blocks": 3,
        "utilisation": round(19 / (7 * 4), 4),
        "max_running": 2,
        "preemptions": 1,
        "steps": 3,
    }


def test_steps_without_running_requests_count_for_nothing_but_preemptions():
    meter = Meter(block_size=4)
    meter.add(StepSample(held={}, live={}, preempted=2))
    assert meter.figures()["peak_blocks_per_request"] == 0
    assert meter.figures()["utilisation"] == 0.0
    assert meter.figures()["preemptions"] == 2


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7.0], 95, 7.0),
        ([1.0, 2.0], 50, 1.5),
        ([3.0, 1.0, 2.0], 0, 1.0),
        ([3.0, 1.0, 2.0], 100, 3.0),
        ([float(i) for i in range(101)], 95, 95.0),
        ([0.0, 10.0], 95, 9.5),
    ],
)
def test_percentile(values, percent, expected):
    assert percentile(values, percent) == pytest.approx(expected)


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=40),
    st.floats(0, 100),
)
def test_a_percentile_agrees_with_torch(values, percent):
    import torch

    expected = torch.quantile(torch.tensor(values, dtype=torch.float64), percent / 100)
    assert percentile(values, percent) == pytest.approx(expected.item(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("values", "percent"), [([], 95), ([1.0], -1), ([1.0], 101)])
def test_a_percentile_of_nothing_or_out_of_range_is_refused(values, percent):
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, percent)
