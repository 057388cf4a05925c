"""What is served and what is refused as one table, for ``vtoken doctor`` and for the docs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from vtoken_sdk.vllm.compat import SERVED_VERSIONS
from vtoken_sdk.vllm.features import ENGINE_REFUSALS, REFUSALS, SERVED


class Status(StrEnum):
    """What happens to whoever asks for a feature."""

    SERVED = "served"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Row:
    """One feature.

    Attributes:
        feature: What it is called in messages.
        status: What happens to whoever asks for it.
        remark: Conditions where it is served; why, and what to do, where it is refused.
    """

    feature: str
    status: Status
    remark: str


def compatibility() -> tuple[Row, ...]:
    """Every row, what is served first."""
    versions = Row("vLLM", Status.SERVED, " and ".join(f"{v}.x" for v in SERVED_VERSIONS))
    served = (Row(each.feature, Status.SERVED, each.condition) for each in SERVED)
    refused = (
        Row(each.feature, Status.REFUSED, each.reason) for each in (*REFUSALS, *ENGINE_REFUSALS)
    )
    return (versions, *served, *refused)
