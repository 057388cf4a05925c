"""Calls a policy without an engine, and reads its answers as they were meant."""

from __future__ import annotations

import traceback
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from vtoken_sdk.policy import ScoringPolicy
from vtoken_sdk.testing.content import MadeUp, Point
from vtoken_sdk.testing.elsewhere import is_elsewhere
from vtoken_sdk.testing.results import Broken
from vtoken_sdk.testing.staged import Conditions, StagedSequence, StagedView

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from vtoken_sdk.policy import Policy
    from vtoken_sdk.testing.plays import Play


@dataclass(frozen=True, slots=True)
class Answer:
    """What a policy chose for one sequence at one eviction point.

    Attributes:
        call: The call, for messages.
        ids: Token ids by position in the view.
        pinned: Token ids that must stay.
        count: Tokens that were to be named.
        positions: What was named: positions in the view.
        scores: Scores by token id, of a policy that scores.
    """

    call: str
    ids: tuple[int, ...]
    pinned: frozenset[int]
    count: int
    positions: tuple[int, ...]
    scores: dict[int, float] | None = None

    @property
    def victims(self) -> frozenset[int]:
        """Token ids that leave."""
        return frozenset(self.ids[position] for position in self.positions)


class Stage:
    """Plays texts to a policy: it is asked at each eviction point, and what it evicts is gone.

    Args:
        policy: The policy; it is kept for the whole play.
        play: The texts.
        conditions: Where tensors are made.

    Attributes:
        views: Every view that was handed out.
    """

    def __init__(
        self,
        policy: Policy,
        play: Play,
        conditions: Conditions = Conditions(),  # noqa: B008
    ) -> None:
        self.policy, self.play, self.conditions = policy, play, conditions
        self.views: list[StagedView] = []
        self.sequences = [
            StagedSequence(
                MadeUp(text.key, text.length),
                Point(-1, 0, 0),
                play.shuffle and play.shuffle * 1_009 + text.key,
            )
            for text in play.texts
        ]

    def perform(self) -> list[list[Answer]]:
        """Play each text to its end, one after the other; answers per text and eviction point."""
        return [
            [self.cut([number])[0] for _ in text.cuts]
            for number, text in enumerate(self.play.texts)
        ]

    def perform_together(self) -> list[list[Answer]]:
        """Play all texts at once: their first eviction points, then their second ones."""
        answers: list[list[Answer]] = [[] for _ in self.play.texts]
        for point in range(max(len(text.cuts) for text in self.play.texts)):
            there = [i for i, text in enumerate(self.play.texts) if point < len(text.cuts)]
            for i, answer in zip(there, self.cut(there), strict=True):
                answers[i].append(answer)
        return answers

    def cut(self, numbers: Sequence[int]) -> list[Answer]:
        """Take texts to their next eviction points and evict there.

        Args:
            numbers: Which texts; they are cut in one call if the policy is elementwise.
        """
        counts = [self._advance(number) for number in numbers]
        together = isinstance(self.policy, ScoringPolicy) and self.policy.elementwise
        groups = [list(numbers)] if together else [[number] for number in numbers]
        answers: list[Answer] = []
        for group in groups:
            answers += self._ask(group, counts[len(answers) : len(answers) + len(group)])
        for number, answer in zip(numbers, answers, strict=True):
            victims = answer.victims
            live = self.sequences[number].live
            self.sequences[number].live = [token for token in live if token not in victims]
        return answers

    def _advance(self, number: int) -> int:
        """Compute a text up to its next eviction point; returns how many tokens leave there."""
        sequence = self.sequences[number]
        point = sequence.point
        cut = self.play.texts[number].cuts[point.number + 1]
        sequence.point = Point(point.number + 1, point.length, point.length + cut.grow)
        sequence.live += range(point.length, sequence.point.length)
        first, last = self.policy.sinks, sequence.point.length - self.policy.recent
        return min(cut.count, sum(first <= token < last for token in sequence.live))

    def _ask(self, numbers: Sequence[int], counts: Sequence[int]) -> list[Answer]:
        sequences = [self.sequences[number] for number in numbers]
        view = StagedView(sequences, self.policy, self.conditions)
        self.views.append(view)
        if not any(counts):
            return [_no_answer(view, i) for i in range(len(numbers))]
        self._call("observe(seq)", view, lambda: self.policy.observe(view))
        if isinstance(self.policy, ScoringPolicy):
            answers = self._scored(self.policy, view, counts)
        else:
            answers = [self._selected(view, counts[0])]
        view.write_back()
        return answers

    def _scored(
        self, policy: ScoringPolicy, view: StagedView, counts: Sequence[int]
    ) -> list[Answer]:
        call = _described("score(seq)", view)
        given = self._call("score(seq)", view, lambda: policy.score(view))
        scores = self._tensor(given, call, torch.float32, (view.num_live,))
        if bool(scores.isnan().any()):
            where = scores.isnan().nonzero()[0].item()
            raise Broken(f"NaN at position {where}", "a number for each live token", call)
        parts = torch.split(scores, [len(ids) for ids in view.ids])
        masks = view.evictable_by_sequence()
        return [
            _lowest(call, ids, mask, count, part.tolist())
            for ids, mask, count, part in zip(view.ids, masks, counts, parts, strict=True)
        ]

    def _selected(self, view: StagedView, count: int) -> Answer:
        call = _described(f"select(seq, {count})", view)
        given = self._call(f"select(seq, {count})", view, lambda: self.policy.select(view, count))
        chosen = self._tensor(given, call, torch.int64, None)
        wrong = [p for p in chosen.tolist() if not 0 <= p < view.num_live]
        if wrong:
            raise Broken(f"position {wrong[0]}", f"positions in 0..{view.num_live - 1}", call)
        ids, evictable = view.ids[0], view.evictable_by_sequence()[0].tolist()
        pinned = frozenset(t for t, free in zip(ids, evictable, strict=True) if not free)
        return Answer(call, tuple(ids), pinned, count, tuple(chosen.tolist()))

    def _call(self, call: str, view: StagedView, function: Callable[[], Any]) -> Any:
        """Call the policy; what it raises is told with the line of its own code."""
        try:
            with self.conditions.elsewhere or nullcontext():
                return function()
        except Broken:
            raise
        except (Exception, SystemExit) as error:
            raise Broken(
                f"{type(error).__name__}: {error}", "an answer", _described(call, view, error)
            ) from error

    def _tensor(
        self, given: Any, call: str, dtype: torch.dtype, shape: tuple[int, ...] | None
    ) -> Tensor:
        """The answer, if it is a tensor of the right kind in the right place."""
        want = f"a tensor of {dtype}" + ("" if shape is None else f" {list(shape)}")
        if not isinstance(given, torch.Tensor):
            raise Broken(f"{type(given).__name__} {given!r:.60}", want, call)
        if given.dtype != dtype or (given.dim() != 1 if shape is None else given.shape != shape):
            raise Broken(f"{given.dtype} {list(given.shape)}", want, call)
        far = self.conditions.elsewhere is not None
        if far and not is_elsewhere(given):
            raise Broken("a tensor on the CPU", "one on the device of the view", call)
        return given.detach().cpu()


def _described(call: str, view: StagedView, error: BaseException | None = None) -> str:
    where = ""
    if error and error.__traceback__:
        frame = traceback.extract_tb(error.__traceback__)
        own = [f for f in frame if "/torch/" not in f.filename and "/testing/" not in f.filename]
        where = f" at {own[-1].filename.rpartition('/')[2]}:{own[-1].lineno}" if own else ""
    sequences = f" of {len(view.ids)} sequences" if len(view.ids) > 1 else ""
    return f"{call} with {view.num_live} live tokens{sequences}{where}"


def _lowest(
    call: str, ids: list[int], evictable: Tensor, count: int, scores: list[float]
) -> Answer:
    """The lowest scores among evictable tokens, older ones first on ties."""
    mask = evictable.tolist()
    free = sorted((scores[i], token, i) for i, token in enumerate(ids) if mask[i])
    pinned = frozenset(token for i, token in enumerate(ids) if not mask[i])
    positions = tuple(i for _, _, i in free[:count])
    by_token = dict(zip(ids, scores, strict=True))
    return Answer(call, tuple(ids), pinned, count, positions, by_token)


def _no_answer(view: StagedView, number: int) -> Answer:
    return Answer("nothing was asked", tuple(view.ids[number]), frozenset(), 0, ())
