"""A policy for ``vtoken serve FILE:CLASS`` that goes wrong while it serves."""

from __future__ import annotations

from dataclasses import dataclass

from vtoken_sdk import ScoringPolicy


@dataclass
class Raises(ScoringPolicy):
    """Its third cut, and each one after it, ends in an error."""

    name = "raises"

    def score(self, seq):
        self.cuts = getattr(self, "cuts", 0) + 1
        if self.cuts > 2:
            raise RuntimeError("no idea what to keep")
        return seq.token_ids.float()
