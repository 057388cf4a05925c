"""The list of checks. A check is a function that raises ``Broken`` when a policy does not hold it.

It stands here with an id for machines and a sentence for people. Ids are part of the kit's
interface: users name them in ``--check`` and in expected failures.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.parameters import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vtoken_sdk.testing.trial import Trial

    Function = Callable[[Trial], str | None]
    """Looks at the policy under trial; may return a remark."""


class Group(StrEnum):
    """What a check is about."""

    CONTRACT = "contract"
    INVARIANTS = "invariants"
    BEHAVIOUR = "behaviour"
    VLLM = "vllm"


DOCS = "docs/reference/checks.md"
LIST = "vtoken validate --list-checks"
"""Says what each check means where that page is not at hand."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        id: Its name for machines.
        name: What it says of a policy that passes.
        group: What it is about.
        function: What looks.
        needs: Checks without which this one proves nothing: it is skipped where one of them failed.
    """

    id: str
    name: str
    group: Group
    function: Function
    needs: tuple[str, ...] = ()

    @property
    def docs(self) -> str:
        """Where it is explained."""
        return f"{DOCS}#{self.id}"


_CHECKS: dict[str, Check] = {}


def check(
    id_: str, name: str, group: Group, needs: tuple[str, ...] = ()
) -> Callable[[Function], Function]:
    """Enter a function into the list; checks run in the order in which they are entered."""

    def enter(function: Function) -> Function:
        assert id_ not in _CHECKS, f"two checks are called {id_}"
        assert all(need in _CHECKS for need in needs), f"{id_} needs checks that come later"
        _CHECKS[id_] = Check(id_, name, group, function, needs)
        return function

    return enter


def all_checks() -> dict[str, Check]:
    """All checks by id, in the order in which they run."""
    import vtoken_sdk.testing.checks  # noqa: F401 - enters them

    return dict(_CHECKS)


def chosen_checks(
    only: Iterable[str] = (), exclude: Iterable[str] = (), *, vllm: bool = False
) -> list[Check]:
    """Choose checks by id or group.

    Args:
        only: Ids or groups; all checks where there are none.
        exclude: Ids or groups to leave out.
        vllm: Whether checks that start vLLM count without being named.

    Raises:
        ConfigError: If there is no such id.
    """
    only, exclude = list(only), list(exclude)
    known = all_checks()
    refuse_unknown([*only, *exclude])
    return [
        check
        for check in known.values()
        if (not only or {check.id, check.group} & set(only))
        and not {check.id, check.group} & set(exclude)
        and (check.group is not Group.VLLM or vllm or {check.id, check.group} & set(only))
    ]


def refuse_unknown(ids: Iterable[str]) -> None:
    """Refuse what is neither the id of a check nor a group.

    Raises:
        ConfigError: With a close one.
    """
    known = [*all_checks(), *Group]
    for word in ids:
        if word not in known:
            raise ConfigError(
                f"there is no check {word!r}{did_you_mean(word, known)} `{LIST}` lists them all"
            )
