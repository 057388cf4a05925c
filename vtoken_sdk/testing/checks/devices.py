"""Whether a policy works wherever an engine keeps its tensors, and lets the device run on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vtoken_sdk.testing.catalogue import Group, check
from vtoken_sdk.testing.elsewhere import Elsewhere
from vtoken_sdk.testing.plays import Play, plays
from vtoken_sdk.testing.results import Advice, Broken
from vtoken_sdk.testing.stage import Stage
from vtoken_sdk.testing.staged import Conditions

if TYPE_CHECKING:
    from vtoken_sdk.testing.trial import Trial

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@check("device-agnostic", "it stays on the engine's device", Group.BEHAVIOUR, ("deterministic",))
def device_agnostic(trial: Trial) -> str | None:
    """On a device that only looks like one; on a real GPU too, where there is one."""

    def prove(play: Play) -> None:
        _perform_elsewhere(trial, play)
        if torch.cuda.is_available():
            Stage(play.tuned(trial.policy), play, Conditions(device="cuda")).perform()

    trial.search(plays(trial.make(), most_cuts=2), prove)
    return None if torch.cuda.is_available() else "on a stand-in: there is no GPU here"


@check(
    "dtype-agnostic",
    "it answers in float32 whatever the cache holds",
    Group.BEHAVIOUR,
    ("answers",),
)
def dtype_agnostic(trial: Trial) -> None:
    """Keys in each dtype a cache may have."""

    def prove(play: Play) -> None:
        for keys in _DTYPES:
            _perform_in(trial, play, keys)

    trial.search(plays(trial.make(), most_cuts=2), prove)


@check("no-host-sync", "it never waits for the device", Group.BEHAVIOUR, ("device-agnostic",))
def no_host_sync(trial: Trial) -> None:
    """Looking at a value on the host stops it until the device's whole queue is done."""

    def prove(play: Play) -> None:
        for wait in _perform_elsewhere(trial, play).waits:
            raise Broken(
                f"{wait.call}, which waits for the device",
                "tensor operations whose sizes the host knows",
                wait.where,
            )

    try:
        trial.search(plays(trial.make(), most_cuts=2), prove)
    except Broken as broken:
        if broken.check:
            raise
        raise Advice(broken) from None


def _perform_elsewhere(trial: Trial, play: Play) -> Elsewhere:
    elsewhere = Elsewhere()
    stage = Stage(play.tuned(trial.policy), play, Conditions(elsewhere=elsewhere))
    stage.perform()
    return elsewhere


def _perform_in(trial: Trial, play: Play, keys: torch.dtype) -> None:
    try:
        Stage(play.tuned(trial.policy), play, Conditions(keys_dtype=keys)).perform()
    except Broken as broken:
        raise Broken(broken.got, broken.want, f"{broken.call}; keys in {keys}") from broken
