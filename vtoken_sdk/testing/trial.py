"""The policy under trial, and how a check searches for an input that breaks it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import Flaky

from vtoken_sdk.testing.making import made
from vtoken_sdk.testing.plays import Play
from vtoken_sdk.testing.results import Broken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hypothesis.strategies import SearchStrategy

    from vtoken_sdk.policy import Policy
    from vtoken_sdk.testing.profiles import Profile
    from vtoken_sdk.testing.subject import Subject


@dataclass(slots=True)
class Trial:
    """What a check gets.

    Attributes:
        subject: Where the policy comes from.
        profile: How hard to look.
        seed: Where the search begins.
        replayed: The example of a replay file as JSON, instead of a search.
        examples: Inputs tried so far.
        program: The last input tried, for people; the smallest that fails, after a failure.
        example: The same as JSON.
        shared: What checks of one run tell each other.
    """

    subject: Subject
    profile: Profile
    seed: int
    replayed: Any = None
    examples: int = 0
    program: tuple[str, ...] = ()
    example: Any = None
    shared: dict[str, Any] = field(default_factory=dict)

    @property
    def policy(self) -> type[Policy]:
        """The class."""
        return self.subject.policy

    def make(self) -> Policy:
        """The policy with its defaults.

        Raises:
            Broken: If it cannot be made.
        """
        return made(self.policy)

    def search(self, inputs: SearchStrategy[Play], prove: Callable[[Play], None]) -> None:
        """Look for an input that breaks something, and shrink it.

        Args:
            inputs: Where to look.
            prove: Raises ``Broken`` for an input that breaks something.
        """

        def tried(value: Play) -> None:
            self._try(value, prove)

        if self.replayed is not None:
            tried(Play.from_json(self.replayed))
            return
        test = seed(self.seed)(given(inputs)(tried))
        try:
            search_settings(self.profile.plays)(test)()
        except Flaky as error:
            raise unwrapped(error) from error

    def each(self, inputs: Iterable[Play], prove: Callable[[Play], None]) -> None:
        """Try all of some inputs, the smallest first.

        Args:
            inputs: The inputs.
            prove: Raises ``Broken`` for an input that breaks something.
        """
        found = [Play.from_json(self.replayed)] if self.replayed is not None else inputs
        for play in found:
            self._try(play, prove)

    def _try(self, play: Play, prove: Callable[[Play], None]) -> None:
        self.examples += 1
        self.program, self.example = play.lines(), play.to_json()
        prove(play)


def search_settings(examples: int, steps: int = 1, *, shrink: bool = True) -> settings:
    """How Hypothesis searches: nothing is remembered from run to run.

    It also tries constants found in the code that is loaded, so a seed leads to the same inputs
    where the same modules are loaded. A replay file holds the input itself.
    """
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


def unwrapped(error: BaseException) -> Broken:
    """A failure that did not repeat itself is one, too: something besides the input decided."""
    for cause in getattr(error, "exceptions", ()):
        if isinstance(cause, Broken):
            return cause
    return Broken("an answer that changes from run to run", "the same for the same input")
