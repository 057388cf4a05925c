"""The device that is not there behaves like one that is."""

from __future__ import annotations

import pytest
import torch

from vtoken_sdk.testing.elsewhere import DEVICE, Elsewhere, WrongDevice, is_elsewhere


@pytest.fixture
def far():
    """A tensor elsewhere, while everything is watched."""
    elsewhere = Elsewhere()
    tensor = elsewhere.put(torch.arange(10))
    with elsewhere:
        yield elsewhere, tensor


STAYS = {
    "arithmetic": lambda t: t.float() * 2 + 1,
    "a scalar from the CPU": lambda t: t + torch.tensor(1),
    "a tensor made for it": lambda t: t + torch.ones(10, device=t.device),
    "a tensor sent to it": lambda t: t + torch.ones(10).to(t.device),
    "a tensor sent to its kind": lambda t: torch.ones(10).to(t) + t,
    "a tensor like it": lambda t: t + torch.zeros_like(t) + t.new_zeros(10),
    "topk": lambda t: t.topk(3).indices,
    "an index from the CPU": lambda t: t[torch.arange(3)],
    "masked_fill": lambda t: t.float().masked_fill(t > 3, float("inf")),
    "argsort": lambda t: t.argsort(stable=True)[:3],
    "where": lambda t: torch.where(t > 3, t, 0),
}


@pytest.mark.parametrize("what", STAYS)
def test_what_stays_elsewhere_without_waiting(far, what: str) -> None:
    elsewhere, tensor = far
    result = STAYS[what](tensor)
    assert is_elsewhere(result)
    assert result.device == DEVICE
    assert elsewhere.waits == []


WAITS = {
    "item": lambda t: t.sum().item(),
    "tolist": lambda t: t.tolist(),
    "bool": lambda t: 1 if t.sum() > 3 else 2,
    "int": lambda t: int(t.sum()),
    "float": lambda t: float(t.sum()),
    "index": lambda t: list(range(t[3])),
    "nonzero": lambda t: t.nonzero(),
    "mask": lambda t: t[t > 3],
    "cpu": lambda t: t.cpu(),
    "to": lambda t: t.to("cpu"),
    "unique": lambda t: t.unique(),
    "equal": lambda t: torch.equal(t, t),
}


@pytest.mark.parametrize("what", WAITS)
def test_what_waits(far, what: str) -> None:
    elsewhere, tensor = far
    WAITS[what](tensor)
    assert elsewhere.waits
    assert "test_elsewhere.py:" in elsewhere.waits[0].where


@pytest.mark.parametrize(
    "mix",
    [
        lambda t: t + torch.arange(10),
        lambda t: torch.full((10,), 1.0) + t,
        lambda t: torch.where(t > 3, t, torch.zeros(10, dtype=torch.int64)),
        lambda t: t.__setitem__(slice(None), torch.zeros(10, dtype=torch.int64)),
    ],
)
def test_two_devices_do_not_mix(far, mix) -> None:
    with pytest.raises(WrongDevice, match=r"two devices.*test_elsewhere.py:\d+"):
        mix(far[1])


def test_what_comes_back_is_of_the_cpu(far) -> None:
    here = far[1].cpu()
    assert not is_elsewhere(here)
    assert here.device.type == "cpu"
    assert is_elsewhere(far[1])


def test_numbers_are_real(far) -> None:
    assert far[1].sum().item() == 45
