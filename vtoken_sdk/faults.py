"""What happens when a policy is wrong: the oldest evictable tokens leave, and somebody is told.

A policy is a third party's code in a server that others share. Shape and dtype are known on the
host. What is known only on the device (NaN, duplicates) is repaired there, and a code per sequence
travels back behind the stream, so a healthy policy never makes anybody wait.
"""

from __future__ import annotations

import logging
from collections import Counter
from enum import IntEnum
from typing import TYPE_CHECKING

import torch

from vtoken_sdk.errors import PolicyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

logger = logging.getLogger(__name__)


class Fault(IntEnum):
    """Codes of what can be wrong with an answer on the device; 0 is fine."""

    NAN = 1
    OUT_OF_RANGE = 2
    PINNED = 3
    DUPLICATE = 4


RAISED, WRONG_ANSWER = "raised", "wrong_answer"
"""Kinds of faults seen on the host, beside the names of :class:`Fault` in lower case."""

_WRONG = {
    Fault.NAN: "score() returned NaN for evictable tokens",
    Fault.OUT_OF_RANGE: "select() returned positions outside the view",
    Fault.PINNED: "select() returned pinned tokens; only seq.evictable ones may go",
    Fault.DUPLICATE: "select() returned a position twice",
}


class FaultLog:
    """Counts the faults of one policy, or raises at the first one.

    Args:
        policy: The policy's name.
        strict: Wait for the device at every cut and raise, instead of repairing and going on.
        on_repair: Called with the policy's name once for every sequence repaired.

    Attributes:
        counts: Sequences repaired, by kind of fault; see :meth:`collect`.
    """

    def __init__(
        self,
        policy: str,
        strict: bool = False,
        on_repair: Callable[[str], None] | None = None,
    ) -> None:
        self.policy, self.strict, self._on_repair = policy, strict, on_repair
        self.counts: Counter[str] = Counter()
        self._pending: list[tuple[Tensor, torch.Event | None, tuple[str, ...]]] = []

    def on_host(self, kind: str, wrong: str, requests: Sequence[str], error: BaseException) -> None:
        """A call failed, and these requests lose their oldest tokens instead.

        Raises:
            PolicyError: If the log is strict.
        """
        if self.strict:
            raise PolicyError(self._message(wrong, requests)) from error
        self._count(kind, wrong, requests)

    def on_device(self, codes: Tensor, requests: Sequence[str]) -> None:
        """Take note of :class:`Fault` codes ``[len(requests)]``, without waiting for them.

        Raises:
            PolicyError: If the log is strict and one of them is not 0.
        """
        if self.strict:
            self._read(codes.tolist(), requests)
        elif codes.device.type == "cpu":
            self._pending.append((codes, None, tuple(requests)))
        else:
            host = torch.empty(codes.shape, dtype=codes.dtype, pin_memory=True)
            host.copy_(codes, non_blocking=True)
            event = torch.Event(codes.device)
            event.record()
            self._pending.append((host, event, tuple(requests)))

    def collect(self) -> Counter[str]:
        """Count the codes that have arrived by now, and return all counts."""
        while self._pending:
            codes, event, requests = self._pending[0]
            if event is not None and not event.query():
                break
            self._pending.pop(0)
            self._read(codes.tolist(), requests)
        return self.counts

    def _read(self, codes: list[int], requests: Sequence[str]) -> None:
        for fault in set(codes) - {0}:
            hit = [r for r, code in zip(requests, codes, strict=True) if code == fault]
            wrong = _WRONG[Fault(fault)]
            if self.strict:
                raise PolicyError(self._message(wrong, hit))
            self._count(Fault(fault).name.lower(), wrong, hit)

    def _count(self, kind: str, wrong: str, requests: Sequence[str]) -> None:
        if not self.counts[kind]:
            logger.warning(
                "%s; the oldest evictable tokens leave instead. Further faults of this kind are "
                "counted only; strict=True makes them errors",
                self._message(wrong, requests),
            )
        self.counts[kind] += len(requests)
        if self._on_repair:
            for _ in requests:
                self._on_repair(self.policy)

    def _message(self, wrong: str, requests: Sequence[str]) -> str:
        return f"policy {self.policy!r}: {wrong} (request {', '.join(map(repr, requests))})"
