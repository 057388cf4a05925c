"""Options that several commands share: what evicts, and when."""

from __future__ import annotations

from typing import Annotated

import typer

Policy = Annotated[str, typer.Option(help="A name from 'vtoken policies'.")]
PolicyArgs = Annotated[
    list[str] | None,
    typer.Option("--policy-arg", metavar="NAME=VALUE", help="Parameter of the policy; repeatable."),
]
Preset = Annotated[
    str, typer.Option(help="Where its other parameters come from: default or paper.")
]
Budget = Annotated[
    int, typer.Option(help="Tokens a request may keep in the cache after its prompt.")
]
PrefillInterval = Annotated[
    int | None,
    typer.Option(help="Also evict every so many tokens of the prompt (multiple of a block)."),
]
Trigger = Annotated[
    str, typer.Option(help="When tokens leave: budget, or pressure (only instead of preempting).")
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop when the policy is at fault.")]
CheckInvariants = Annotated[
    bool, typer.Option("--check-invariants", help="Verify the four invariants at every step; slow.")
]
