"""Workloads that have a name: the whole file where ``VTOKEN_DATA`` has it, else a small sample."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from vtoken_sdk.errors import ConfigError

DATA = Path(__file__).with_name("data")
VARIABLE = "VTOKEN_DATA"


@dataclass(frozen=True, slots=True)
class Named:
    """A workload with a name.

    Attributes:
        sample: The file that comes with vToken.
        full: The whole file below the folder ``VTOKEN_DATA`` names.
        licence: Of the data.
    """

    sample: str
    full: str
    licence: str


NAMED = {
    "mooncake": Named(
        "mooncake.jsonl", "mooncake/conversation_trace.jsonl", "Mooncake FAST'25, Apache-2.0"
    ),
    "azure": Named(
        "azure.csv",
        "azure-llm/AzureLLMInferenceTrace_conv.csv",
        "Azure LLM inference trace 2023, CC BY 4.0",
    ),
    "sharegpt": Named(
        "sharegpt.csv",
        "sharegpt-lengths/sharegpt_8k_filtered_stats_llama2_tokenizer.csv",
        "ShareGPT lengths of sarathi-serve, Apache-2.0",
    ),
    "chat": Named("chat.jsonl", "mt-eval/mt-bench_extended.jsonl", "MT-Eval, MIT"),
    "mt-bench": Named("mt-bench.jsonl", "mtbench/question.jsonl", "MT-Bench, Apache-2.0"),
    "longeval": Named("longeval.jsonl", "longeval/5_topics.jsonl", "LongEval, Apache-2.0"),
    "qmsum": Named("qmsum.jsonl", "qmsum/test.jsonl", "QMSum, MIT; AMI Meeting Corpus, CC BY 4.0"),
}


def data_folder() -> Path | None:
    """The folder with whole files, or None where the user has none.

    Raises:
        ConfigError: If ``VTOKEN_DATA`` names something else.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{VARIABLE} must name a folder, got {named}: correct it or unset it")
    return folder


def named_file(name: str) -> tuple[Path, str]:
    """Where a named workload lies.

    Returns:
        The file, and a line that says which it is and under which licence.
    """
    named, folder = NAMED[name], data_folder()
    if folder and (folder / named.full).is_file():
        return folder / named.full, f"{named.full} ({named.licence})"
    return DATA / named.sample, f"sample of {named.full} ({named.licence})"
