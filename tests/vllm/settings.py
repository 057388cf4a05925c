"""Which settings exactness is shown for, and the requests each setting serves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from tests.vllm.lab import Engine, Request, random_requests, text_requests

CHOICES = {
    "model": ("tiny", "smol"),
    "policy": ("random", "streaming-llm"),
    "budget": (64, 96, 256),
    "prefill_interval": (None, 128),
    "chunk": (128, 2048),
    "pool": ("ample", "tight"),
    "processes": ("one", "several"),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One choice of everything the result must not depend on, and of policy and budget.

    Attributes:
        pool: ``tight``: running requests outgrow the pool and are preempted.
        processes: ``several`` is vLLM's default: engine core and worker in processes of their own.
    """

    model: str
    policy: str
    budget: int
    prefill_interval: int | None
    chunk: int
    pool: str
    processes: str

    @property
    def name(self) -> str:
        """Short and readable, for test ids and file names."""
        return "-".join(str(value) for value in astuple(self))

    def engine(self) -> Engine:
        """The engine with this setting, and its requests as workload ``w``."""
        blocks, max_model_len, requests = _load(self.model, self.pool, self.budget)
        return Engine(
            model=self.model,
            policy=self.policy,
            budget=self.budget,
            prefill_interval=self.prefill_interval,
            chunk=self.chunk,
            blocks=blocks,
            max_model_len=max_model_len,
            max_num_seqs=32,
            admission=self.pool == "ample",
            in_process=self.processes == "one",
            workloads={"w": requests},
        )


LENGTHS = (1200, 40, 64, 97, 128, 200, 333, 600)


def _load(model: str, pool: str, budget: int) -> tuple[int, int, tuple[Request, ...]]:
    """Blocks, longest context and requests.

    A tight pool holds one request of full length and little more. Prompts of less than a block are
    admitted while they are short; together they then outgrow it, the more the larger the budget.
    """
    if model == "tiny":
        if pool == "ample":
            return 256, 1344, random_requests("t", LENGTHS, 100)
        crowd, output = (16, 320) if budget == 256 else (24, 240)
        lengths = (*LENGTHS, *[20] * crowd)
        return 43, 1344, random_requests("t", lengths, [100] * 8 + [output] * crowd)
    if pool == "ample":
        return 128, 1344, text_requests("t", (1200, 40, 97, 200, 384), 48)
    return 15, 448, text_requests("t", (300, 150, 40, *[24] * 8), [60] * 3 + [90] * 8)


def settings() -> list[Setting]:
    """All settings there are."""
    return [Setting(*values) for values in itertools.product(*CHOICES.values())]


def grouped(some: Sequence[Setting]) -> dict[str, list[Setting]]:
    """Settings by what their engines need in common to take turns in one process."""
    groups: dict[str, list[Setting]] = {}
    for setting in some:
        name = f"{setting.model}-{setting.policy}-{setting.pool}-{setting.processes}"
        groups.setdefault(name, []).append(setting)
    return groups


def uncovered(chosen: Sequence[Setting]) -> set[tuple[str, object, str, object]]:
    """Pairs of choices that no chosen setting combines."""
    return _pairs(settings()) - _pairs(chosen)


def _pairs(chosen: Sequence[Setting]) -> set[tuple[str, object, str, object]]:
    names = [field.name for field in fields(Setting)]
    return {
        (a, getattr(setting, a), b, getattr(setting, b))
        for setting in chosen
        for a, b in itertools.combinations(names, 2)
    }


# With the tiny model in one process an engine costs seconds: policy, budget and interval in full.
# What costs a minute each (the real model, several processes) meets every other choice once.
CHOSEN = [
    *(
        Setting("tiny", policy, budget, interval, chunk, pool, "one")
        for (policy, budget, interval), (chunk, pool) in zip(
            itertools.product(*(CHOICES[k] for k in ("policy", "budget", "prefill_interval"))),
            itertools.cycle(
                [(128, "tight"), (2048, "ample"), (128, "ample"), (2048, "tight"), (128, "tight")]
            ),
            strict=False,
        )
    ),
    Setting("smol", "random", 256, 128, 128, "ample", "one"),
    Setting("smol", "random", 64, None, 2048, "ample", "one"),
    Setting("smol", "streaming-llm", 96, 128, 2048, "ample", "one"),
    Setting("smol", "streaming-llm", 256, None, 128, "ample", "one"),
    Setting("smol", "streaming-llm", 64, None, 2048, "tight", "several"),
    Setting("smol", "streaming-llm", 96, 128, 128, "tight", "one"),
    Setting("tiny", "random", 96, None, 2048, "ample", "several"),
    Setting("tiny", "random", 256, 128, 128, "ample", "several"),
]
