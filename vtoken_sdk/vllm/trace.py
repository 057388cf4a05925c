"""The eviction trace: one JSON line per cut, for debugging, exactness tests and replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from vtoken_sdk.vllm.directive import external_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vtoken_sdk.config import Variant
    from vtoken_sdk.cut import CutResult
    from vtoken_sdk.vllm.directive import Cut


class EvictionTrace:
    """Writes cuts to a file, which is emptied first. Copies victims to the host, so it costs.

    Args:
        path: The file; its folder must exist.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - lives with the worker

    def write(self, cuts: Sequence[Cut], result: CutResult, variant: Variant) -> None:
        """Append one line per cut.

        Each is ``{"request", "life", "variant", "length", "evicted", "live", "freed_blocks",
        "moved"}``: positions >= ``length`` of the request's text do not see the tokens ``evicted``.
        """
        rows = zip(
            cuts,
            result.victims.tolist(),
            result.plan.new_lengths,
            result.plan.num_moves().tolist(),
            strict=True,
        )
        for cut, victims, live, moved in rows:
            line = {
                "request": external_id(cut.req_id),
                "life": cut.life,
                "variant": variant.value,
                "length": cut.length,
                "evicted": sorted(victims[: cut.count]),
                "live": live,
                "freed_blocks": cut.freed_blocks,
                "moved": moved,
            }
            self._file.write(json.dumps(line) + "\n")
        self._file.flush()
