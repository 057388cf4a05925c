"""How hard to look."""

from __future__ import annotations

from dataclasses import dataclass

from vtoken_sdk.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Profile:
    """Sizes of a run.

    Attributes:
        name: As users call it.
        plays: Examples per property that needs no engine.
        programs: Programs the state machine tries.
        steps: Most steps of a program.
        speed_repeats: Timed calls per batch size.
    """

    name: str
    plays: int
    programs: int
    steps: int
    speed_repeats: int


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("quick", plays=8, programs=6, steps=15, speed_repeats=1),
        Profile("default", plays=50, programs=50, steps=30, speed_repeats=3),
        Profile("thorough", plays=500, programs=600, steps=50, speed_repeats=10),
    )
}


def profile_named(name: str) -> Profile:
    """A profile by name.

    Raises:
        ConfigError: If there is none.
    """
    if name not in PROFILES:
        raise ConfigError(f"there is no profile {name!r}; choose {', '.join(PROFILES)}")
    return PROFILES[name]
