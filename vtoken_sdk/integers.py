"""Numbers that callers pass, checked: what merely looks like one would be counted wrongly."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, SupportsIndex

from vtoken_sdk.errors import ConfigError, TableError

if TYPE_CHECKING:
    from collections.abc import Iterable


def integer(value: SupportsIndex, what: str) -> int:
    """A plain integer, from anything that is one: a tensor or NumPy scalar, but no bool or float.

    Args:
        value: What was passed.
        what: What messages call it.

    Raises:
        TableError: If it is no integer.
    """
    # A tensor of one bool would count as an integer as well.
    if not isinstance(value, bool) and not str(getattr(value, "dtype", "")).endswith("bool"):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TableError(f"{what} must be an integer, not {value!r}: pass an int")


def positive(value: SupportsIndex, what: str) -> int:
    """A setting that is a plain integer of at least 1.

    Raises:
        ConfigError: If it is not.
    """
    try:
        number = integer(value, what)
    except TableError as error:
        raise ConfigError(str(error)) from None
    if number < 1:
        raise ConfigError(f"{what} must be at least 1, not {number}")
    return number


def block_numbers(block_ids: Iterable[SupportsIndex]) -> list[int]:
    """Block ids as plain integers.

    Raises:
        TableError: If one is no integer, negative, or named twice.
    """
    blocks = [integer(block, "a block id") for block in block_ids]
    if min(blocks, default=0) < 0:
        raise TableError(f"block ids are never negative, but {min(blocks)} was passed")
    if len(set(blocks)) != len(blocks):
        twice = sorted({block for block in blocks if blocks.count(block) > 1})
        raise TableError(f"block ids must be distinct, but {twice} were passed several times")
    return blocks
