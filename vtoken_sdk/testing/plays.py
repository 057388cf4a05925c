"""Inputs of checks that need no engine: texts, when they are cut, and how it all lies in memory.

A play is plain data, so that it can be printed, shrunk by Hypothesis and written to a replay file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from vtoken_sdk.testing.making import made

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vtoken_sdk.policy import Policy


@dataclass(frozen=True, slots=True)
class Cut:
    """One eviction point.

    Attributes:
        grow: Tokens computed since the one before; the prompt, at the first.
        count: Tokens that leave; fewer where fewer are evictable.
    """

    grow: int
    count: int


@dataclass(frozen=True, slots=True)
class Text:
    """One request.

    Attributes:
        key: Stands for its content: attention, keys and random numbers follow from it.
        cuts: Its eviction points.
    """

    key: int
    cuts: tuple[Cut, ...]

    @property
    def length(self) -> int:
        """Tokens computed in all."""
        return sum(cut.grow for cut in self.cuts)

    def __str__(self) -> str:
        steps = ", ".join(f"+{cut.grow} tokens then evict {cut.count}" for cut in self.cuts)
        return f"text {self.key}: {steps}"


@dataclass(frozen=True, slots=True)
class Play:
    """Requests that are served together.

    Attributes:
        texts: The requests.
        shuffle: Seed of the physical order of tokens; 0 for the order of the text.
        tuning: Parameters of the policy that differ from its defaults.
    """

    texts: tuple[Text, ...]
    shuffle: int = 0
    sinks: int | None = None
    recent: int | None = None

    def lines(self) -> tuple[str, ...]:
        """For people."""
        pins = {"sinks": self.sinks, "recent": self.recent}
        set_ = ", ".join(f"{name}={value}" for name, value in pins.items() if value is not None)
        head = [f"policy with {set_}"] if set_ else []
        order = [f"physical order shuffled with seed {self.shuffle}"] if self.shuffle else []
        return (*head, *map(str, self.texts), *order)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Play:
        """The inverse of :meth:`to_json`."""
        texts = tuple(
            Text(text["key"], tuple(Cut(**cut) for cut in text["cuts"])) for text in fields["texts"]
        )
        return cls(texts, fields["shuffle"], fields["sinks"], fields["recent"])

    def tuned(self, policy: type[Policy]) -> Policy:
        """A fresh policy with this play's parameters."""
        pins = {"sinks": self.sinks, "recent": self.recent}
        return made(policy, **{name: value for name, value in pins.items() if value is not None})

    def shuffled(self, seed: int) -> Play:
        """The same in another physical order."""
        return replace(self, shuffle=seed)


def texts(policy: Policy, most_cuts: int = 3) -> st.SearchStrategy[Text]:
    """Texts of a comfortable size for a policy: longer than what it pins.

    Args:
        policy: Whose pins count.
        most_cuts: Most eviction points of a text.
    """
    pinned = policy.sinks + policy.recent
    first = st.builds(Cut, st.integers(pinned + 8, pinned + 96), st.integers(1, 48))
    later = st.builds(Cut, st.integers(1, 24), st.integers(1, 24))
    cuts = st.builds(lambda one, more: (one, *more), first, st.lists(later, max_size=most_cuts - 1))
    return st.builds(Text, st.integers(0, 999), cuts)


def plays(policy: Policy, fewest: int = 1, most: int = 1, most_cuts: int = 3) -> Any:
    """Plays of some texts, in any physical order.

    Args:
        policy: Whose pins count.
        fewest: Fewest texts.
        most: Most texts; their keys differ.
        most_cuts: Most eviction points of a text.
    """
    several = st.lists(
        texts(policy, most_cuts), min_size=fewest, max_size=most, unique_by=lambda text: text.key
    )
    return st.builds(Play, several.map(tuple), st.integers(0, 3))
